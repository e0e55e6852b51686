"""Engines that sleep over memory whose addresses stay: nothing is recorded twice, and nothing reads
what was given up."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from tests.core.layers.test_device_memory import Reserving

import hotshoe.layers.weights
import hotshoe.runner.worker
from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.engine.start import draft as draft_setup
from hotshoe.errors import MemoryLimitError
from hotshoe.layers.host_memory import RestingPlace
from hotshoe.runner.runner import Runner
from hotshoe_conformance.checkpoint import write_model
from hotshoe_conformance.host import host_plugins

PROMPTS = [TokensPrompt([(7 * i + n) % 320 for i in range(20 + n)]) for n in range(3)]
PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
OPTIONS = {"platform": "cpu", "skip_tokenizer_init": True, "max_num_seqs": 4, "max_model_len": 128}
#: Plain; two groups of caches, and tied weights; weights with scales. The processor's own kernels
#: keep addresses, and no device's do.
MODELS = [("llama", {}), ("gemma2", {}), ("llama", {"quantization": "int8"})]
KERNEL = {"linear": "reference"}


class Device(Reserving):
    """A device that is the host: one for all engines of a test, as its memory is."""

    one: Any

    def __new__(cls, *args: object) -> Self:
        return cls.one

    def __init__(self, *args: object) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Let weights of a processor be moved as those of a device."""
    Device.one = object.__new__(Device)
    Reserving.__init__(Device.one)
    monkeypatch.setattr(hotshoe.runner.worker, "Transfer", Device)
    monkeypatch.setattr(hotshoe.layers.weights, "HOST", torch.device("meta"))
    return Device.one


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Runner]:
    """Note who records."""
    runners: list[Runner] = []
    record = Runner.record_graphs

    def noted(self: Runner) -> None:
        runners.append(self)
        record(self)

    monkeypatch.setattr(Runner, "record_graphs", noted)
    return runners


@pytest.fixture
def open_llm(tmp_path: Path, device: Device) -> Iterator[Callable[..., LLM]]:
    opened: list[LLM] = []

    def start(name: str = "llama", **options: Any) -> LLM:
        path = tmp_path / name
        if not path.exists():
            write_model(name, path, host_plugins(), 1)
        opened.append(LLM(str(path), **OPTIONS | options, load_format="dummy", kernel=KERNEL))
        return opened[-1]

    yield start
    for llm in opened:
        llm.close()


@pytest.fixture
def llm(open_llm: Callable[..., LLM]) -> LLM:
    return open_llm()


def answers(llm: LLM) -> list[list[int]]:
    return [result.outputs[0].token_ids for result in llm.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_from_the_second_sleep_on_nothing_is_recorded(
    open_llm, device: Device, recorded: list[Runner], name: str, options: dict[str, Any]
) -> None:
    llm = open_llm(name, **options)
    wanted = answers(llm)
    for sleeps in range(3):
        del device.log[:]
        llm.sleep()
        assert device.log == ["give back"] * 2 * bool(sleeps)
        del device.log[:]
        llm.wake_up()
        assert device.log[-2:] == ["take"] * 2
        assert answers(llm) == wanted
        assert len(recorded) == 2


@pytest.mark.parametrize("room", [0, 1])
@pytest.mark.parametrize("slept", [0, 1])
def test_a_wake_without_room_changes_nothing(
    llm: LLM, device: Device, slept: int, room: int
) -> None:
    """None for weights, or none for caches behind them."""
    wanted = answers(llm)
    for _ in range(slept):
        llm.sleep()
        llm.wake_up()
    llm.sleep()
    for _ in range(2):
        device.room = room
        with pytest.raises(MemoryLimitError, match="too little memory to"):
            llm.wake_up()
        assert llm.is_sleeping and device.taken == 0
    device.room = None
    llm.wake_up()
    assert answers(llm) == wanted


def test_parts_wake_one_after_the_other(llm: LLM, device: Device, recorded: list[Runner]) -> None:
    wanted = answers(llm)
    for sleeps in range(3):
        llm.sleep()
        llm.wake_up(["weights"])
        if sleeps == 1:
            llm.sleep()  # its caches have not come back
            assert device.taken == 0
            llm.wake_up(["weights"])
        device.room = 0
        with pytest.raises(MemoryLimitError, match="allocate the KV cache"):
            llm.wake_up()
        assert device.taken == 1
        device.room = None
        llm.wake_up()
        assert answers(llm) == wanted
    assert len(recorded) == 1


def test_all_goes_with_the_engine(llm: LLM, device: Device) -> None:
    wanted = answers(llm)
    llm.sleep()
    llm.wake_up()
    llm.sleep(2)
    assert device.living() == []
    for _ in range(2):
        llm.wake_up()
        assert answers(llm) == wanted
        llm.sleep()
    assert device.taken == 0 and device.living()
    llm.close()
    gc.collect()
    assert device.living() == []


def test_new_weights_lie_where_the_old_ones_did(
    llm: LLM, recorded: list[Runner], tmp_path: Path
) -> None:
    llm.sleep()
    llm.wake_up()
    before = answers(llm)
    llm.update_weights(tmp_path / "llama")
    assert answers(llm) != before
    wanted = answers(llm)
    for _ in range(2):
        llm.sleep()
        llm.wake_up()
        assert answers(llm) == wanted
    assert len(recorded) == 1


def test_a_draft_model_without_room_leaves_both_asleep(
    open_llm, device: Device, recorded: list[Runner], tmp_path: Path, monkeypatch
) -> None:
    # The draft model has `KERNEL`, too, as weights of the processor's own kernels must not move.
    unshared = tuple(name for name in draft_setup.UNSHARED if name != "kernel")
    monkeypatch.setattr(draft_setup, "UNSHARED", unshared)
    draft = write_model("llama", tmp_path / "draft", host_plugins(), 2)
    method = {
        "method": "draft_model",
        "model": str(draft),
        "num_speculative_tokens": 2,
        "adaptive": False,
    }
    llm = open_llm(speculative_config=method)
    wanted = answers(llm)
    for sleeps in range(3):
        llm.sleep()
        if sleeps:
            for room in (1, 2, 3):  # of weights and caches, twice
                device.room = room
                with pytest.raises(MemoryLimitError):
                    llm.wake_up()
                assert llm.is_sleeping and device.taken == 0
            device.room = None
        llm.wake_up()
        assert answers(llm) == wanted and device.taken == 4
    assert len(recorded) == 4


def test_a_sleep_that_is_prepared_is_like_later_ones(
    open_llm, device: Device, recorded: list[Runner]
) -> None:
    wanted = answers(open_llm())
    del recorded[:]
    llm = open_llm(enable_sleep_mode=True)
    assert answers(llm) == wanted
    for _ in range(2):
        del device.log[:]
        llm.sleep()
        assert device.log == ["give back"] * 2
        llm.wake_up()
        assert answers(llm) == wanted
    assert len(recorded) == 1


def test_what_hinders_a_sleep_hinders_no_start(
    open_llm, device: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object) -> None:
        raise MemoryLimitError("the host grants nothing")

    monkeypatch.setattr(RestingPlace, "give_up", refuse)
    llm = open_llm(enable_sleep_mode=True)
    assert "the host grants nothing" in caplog.text
    assert len(answers(llm)) == len(PROMPTS)
