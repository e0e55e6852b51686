"""The platform's answers on this machine, and its refusals."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import hotshoe_native
from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Available, Broken, Change
from hotshoe.slots import SLOTS, Selector
from hotshoe_cpu.native import isa_name
from hotshoe_cpu.platform import TOKEN_BUDGETS, CpuPlatform, processor_name


@pytest.fixture
def torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_detection() -> None:
    assert CpuPlatform().probe() == Available(10)


def test_missing_kernels_are_broken_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(isa: str | None = None) -> object:
        raise ImportError("no build can run here: generic (not built)")

    monkeypatch.setattr(hotshoe_native, "load", load)
    detection = CpuPlatform().probe()
    assert isinstance(detection, Broken)
    assert "generic (not built); reinstall" in detection.cause


def test_facts() -> None:
    facts = CpuPlatform().facts()
    assert (facts.platform, facts.device) == ("cpu", "cpu")
    assert facts.memory_bytes > 2**28
    assert facts.compute_units >= 1
    assert isa_name(facts) == hotshoe_native.load().info()["isa"]
    assert "generic" in facts.features


#: Slots of asynchronous devices.
ASYNCHRONOUS = {"transfer"}
#: Blocks that it composes: a recorded step is one native call already.
COMPOSED = {"decoder_layer", "model_step"}


def test_candidates_cover_every_slot() -> None:
    platform = CpuPlatform()
    without = ASYNCHRONOUS | COMPOSED
    assert {c.slot for c in platform.candidates()} == set(SLOTS) - without
    Selector(SLOTS, platform.candidates(), platform.facts())  # names are unique


@pytest.mark.parametrize(("max_num_seqs", "budget"), [(256, 512), (1000, 1000)])
def test_resolve_decides_what_is_open(max_num_seqs: int, budget: int) -> None:
    platform = CpuPlatform()
    isa = {"isa": "generic"}
    changes = platform.resolve(EngineConfig(max_num_seqs=max_num_seqs, platform_options=isa))
    found = {c.field: c.value for c in changes}
    assert found == {"block_size": 32, "max_num_batched_tokens": budget}
    assert all(isinstance(c, Change) and c.reason for c in changes)
    assert not platform.resolve(EngineConfig(block_size=64, max_num_batched_tokens=2048))


def test_an_instruction_set_may_have_a_budget_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOKEN_BUDGETS, "generic", 768)
    changes = CpuPlatform().resolve(EngineConfig(platform_options={"isa": "generic"}))
    assert {c.field: c.value for c in changes}["max_num_batched_tokens"] == 768


def test_float16_checkpoints_are_computed_in_a_type_with_kernels() -> None:
    platform = CpuPlatform()
    assert platform.dtype_for("float16")[0] == "bfloat16"
    for dtype in ("float32", "bfloat16"):
        assert platform.dtype_for(dtype) == (dtype, "the checkpoint's type")


def test_isa_option_reaches_the_facts() -> None:
    platform = CpuPlatform()
    platform.resolve(EngineConfig(platform_options={"isa": "generic"}))
    assert isa_name(platform.facts()) == "generic"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isa": "avx9"}, r"platform_options.isa: unknown instruction set 'avx9'.*generic"),
        ({"threads": 10**6}, "platform_options: 1000000 threads exceed"),
        ({"speed": 3}, "no option 'speed'"),
    ],
)
def test_resolve_refuses(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CpuPlatform().resolve(EngineConfig(platform_options=options))


@pytest.mark.usefixtures("torch_threads")
def test_activation_sets_and_reports_threads() -> None:
    platform = CpuPlatform()
    config = EngineConfig(platform_options={"threads": 1, "isa": "generic"})
    platform.resolve(config)
    report = platform.activate(config)
    assert (report["isa"], report["threads"]) == ("generic", 1)
    assert hotshoe_native.load("generic").info()["threads"] == 1
    assert torch.get_num_threads() == 1


def test_threads_that_do_not_start_name_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Native:
        @staticmethod
        def set_threads(n: int, cores: list[int]) -> None:
            raise RuntimeError(f"thread {n} of {n} cannot be started: none left")

    platform, config = CpuPlatform(), EngineConfig(platform_options={"threads": 2})
    platform.resolve(config)
    monkeypatch.setattr(hotshoe_native, "load", lambda isa: Native)
    with pytest.raises(ConfigError, match=r"_options\.threads: thread 2 of 2 cannot.*smaller"):
        platform.activate(config)


def test_memory_budget_is_a_share_of_what_is_free() -> None:
    budget = CpuPlatform().memory_budget(EngineConfig())
    assert 0 < budget.available_bytes < CpuPlatform().facts().memory_bytes
    assert "free" in budget.note
    assert budget.available_bytes < budget.free_bytes < CpuPlatform().facts().memory_bytes


def test_the_share_of_memory_may_be_chosen() -> None:
    platform = CpuPlatform()
    platform.resolve(EngineConfig(platform_options={"memory_fraction": 0.25}))
    budget = platform.memory_budget(EngineConfig())
    assert budget.available_bytes == int(budget.free_bytes * 0.25)
    assert budget.note.startswith("25% of the ")


def test_processor_name(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast One\n")
    assert processor_name(tmp_path) == "Fast One"
    assert processor_name(tmp_path / "nothing")


def test_workers_divide_threads_and_memory() -> None:
    whole, parts = CpuPlatform(), [CpuPlatform() for _ in range(2)]
    options = EngineConfig(platform_options={"threads": 2})
    for rank, part in enumerate(parts):
        part.resolve(options)
        part.take_part(rank, 2)
    assert [part.facts().compute_units for part in parts] == [1, 1]
    share = parts[0].memory_budget(options).available_bytes
    assert share == pytest.approx(whole.memory_budget(options).available_bytes / 2, rel=0.2)


def test_more_workers_than_threads_are_refused() -> None:
    platform = CpuPlatform()
    platform.resolve(EngineConfig(platform_options={"threads": 2}))
    with pytest.raises(ConfigError, match=r"3 workers cannot share 2 threads .* lower tensor_par"):
        platform.take_part(0, 3)
