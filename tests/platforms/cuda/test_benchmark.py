"""The arithmetic of `benchmarks/gpu.py`: which part of decoding a device waits for the host."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def gpu_bench() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks/gpu.py"
    spec = importlib.util.spec_from_file_location("gpu_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("spans", "share"),
    [
        ([(0, 10)], 0),
        ([(0, 10), (10, 20), (20, 30)], 0),
        ([(0, 10), (11, 19), (20, 30)], 2 / 30),
        ([(5, 10), (15, 20)], 5 / 15),
        # The clock's grain may put an event before the one it follows.
        ([(0, 10), (9.999, 20)], 0),
    ],
)
def test_idle_is_what_lies_between(gpu_bench, spans, share: float) -> None:
    assert gpu_bench.idle_share(spans) == pytest.approx(share)


class Stream:
    """A device's stream: an event is done when the work before it is, and the host has told it."""

    def __init__(self) -> None:
        self.host = self.device = 0.0

    def event(self) -> Event:
        return Event(self)

    def launch(self, ms: float) -> None:
        self.device = max(self.device, self.host) + ms


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def record(self) -> None:
        self.at = max(self.stream.device, self.stream.host)

    def synchronize(self) -> None:
        self.stream.host = max(self.stream.host, self.at)

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def measured(gpu_bench, host_ms: float, device_ms: float, counts: list[int]) -> float:
    """Run steps of so many tokens, each told in so much of the host's time."""
    stream = Stream()
    marks = gpu_bench.Marks(stream.event, 32)

    def execute(plan: SimpleNamespace) -> str:
        stream.launch(device_ms)
        return "step"

    step = marks.around(execute)
    for count in counts:
        stream.host += host_ms
        assert step(SimpleNamespace(num_tokens=count)) == "step"
    return gpu_bench.idle_share(marks.spans())


def test_a_host_that_is_ahead_leaves_no_gap(gpu_bench) -> None:
    assert measured(gpu_bench, 1.0, 5.0, [32] * 50) == 0


def test_a_host_that_is_late_leaves_its_lateness(gpu_bench) -> None:
    # Every 10 ms a step of 8 ms: 2 ms of waiting, and no gap behind the last one.
    share = measured(gpu_bench, 10.0, 8.0, [32] * 50)
    assert share == pytest.approx(49 * 2 / (49 * 10 + 8))


def test_other_steps_and_their_gaps_do_not_count(gpu_bench) -> None:
    late = measured(gpu_bench, 10.0, 8.0, [32] * 9)
    assert measured(gpu_bench, 10.0, 8.0, [8192, 31, 32, 32, 8192, *[32] * 9, 16]) == late


def test_that_no_step_counts_is_said(gpu_bench) -> None:
    with pytest.raises(AssertionError, match="no step has so many tokens"):
        measured(gpu_bench, 1.0, 1.0, [1, 2])


def test_a_start_counts_by_its_median(gpu_bench, monkeypatch: pytest.MonkeyPatch) -> None:
    ages = iter([9.0, 14.0, 9.5])
    monkeypatch.setattr(
        gpu_bench, "new_process", lambda settings: {"total_s": next(ages), "phases": {}}
    )
    found = gpu_bench.startup(["platform=cuda"], 3)
    assert (found["median"], found["all"]) == (9.5, [9.0, 14.0, 9.5])


MODELS = Path(__file__).parents[3] / "benchmarks/models"


def test_the_limits_of_a_model_of_experts(gpu_bench) -> None:
    """Figures of Qwen3-30B-A3B: 3.3 billion elements for one token, 30.5 for all of them."""
    model = gpu_bench.read_model(MODELS / "qwen3-30b-a3b")
    embedding = model.vocab * model.hidden
    one = model.layers * model.layer_parameters(model.read_experts(1)) + 2 * embedding
    whole = model.layers * model.layer_parameters(model.experts) + 2 * embedding
    assert one == pytest.approx(3.35e9, rel=0.01)
    assert whole == pytest.approx(30.5e9, rel=0.01)
    assert model.read_experts(1) == pytest.approx(8)
    assert 100 < model.read_experts(32) < model.read_experts(256) <= 128


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 7.5), ("qwen2.5-7b", 7.07), ("gemma-2-9b", 9.24), ("phi-3-mini", 3.7)],
)
def test_the_limits_of_dense_models(gpu_bench, name: str, billions: float) -> None:
    model = gpu_bench.read_model(MODELS / name)
    assert model.step_bytes(1, 0) / 2e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(
    ("name", "online", "bits"),
    [
        ("llama-3.1-8b", "", 16),
        ("llama-3.1-8b", "fp8", 8),
        ("llama-3.1-8b", "int4_128", 4.5),
        ("llama-3.1-8b-w4a16", "", 4.25),
    ],
)
def test_bits_of_weights(gpu_bench, name: str, online: str, bits: float) -> None:
    assert gpu_bench.read_model(MODELS / name, online).weight_bits == bits


def test_shares_are_limits_over_medians(gpu_bench) -> None:
    results = {
        "limits": {"copy_TB_s": 4.0, "step_1_ms": 1.0, "step_32_ms": 3.0, "prefill_8192_ms": 50.0},
        "a one stream 128/256": {"median": 2.0},
        "b prefill 8192": {"median": 100.0},
    }
    found = {name: share["median"] for name, share in gpu_bench.shares(results).items()}
    assert found == {"s one stream 128/256": 50.0, "s prefill 8192": 50.0}
