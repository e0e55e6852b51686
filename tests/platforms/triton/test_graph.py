"""Recorded work; what is recorded needs a device, how it is done does not."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.slots import Between, GraphSpec
from hotshoe_triton.graph import Graph, no_garbage, recording_stream, supports

SPEC = GraphSpec(8)
RECORDS = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU that PyTorch calls cuda"
)


def test_nothing_is_collected_during_a_recording() -> None:
    assert gc.isenabled()
    with no_garbage():
        assert not gc.isenabled()
        with no_garbage():
            pass
        assert not gc.isenabled(), "whoever turned it off turns it on"
    assert gc.isenabled()


class Device:
    """What `torch.cuda` has for recordings, as it behaves there: one that failed cannot be ended
    without an error, and what it keeps for the process is made in the mode of its beginning."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.current: object = Default(self)
        self.modes: list[object] = []
        self.pools = 0
        self.recording = self.broken = False
        self.alive: set[tuple[int, int]] = set()

    def Stream(self, device: int) -> Stream:
        self.log.append("new stream")
        return Stream(self)

    def current_device(self) -> int:
        return 0

    def current_stream(self) -> object:
        return self.current

    @contextmanager
    def stream(self, stream: object) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def empty_cache(self) -> None:
        self.log.append("give back")

    def CUDAGraph(self) -> Recording:
        self.pools += 1
        return Recording(self, self.pools)


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device

    def wait_stream(self, other: object) -> None:
        self.device.log.append(("wait", type(self), type(other)))


class Default(Stream):
    """That on which an engine's steps run."""


class Recording:
    """Lives in a pool of its own, or in that of one that lives still."""

    def __init__(self, device: Device, number: int) -> None:
        self.device, self.own, self.ended = device, (0, number), False
        self.alive = device.alive

    def __del__(self) -> None:
        self.alive.discard(self.own)

    def pool(self) -> tuple[int, int]:
        assert self.ended
        return self.own

    def capture_begin(self, capture_error_mode: str, pool: tuple[int, int] | None = None) -> None:
        assert pool is None or pool in self.alive, "a pool goes with the last recording in it"
        assert not isinstance(self.device.current, Default), "this stream cannot be recorded"
        assert not self.device.recording, "one after another"
        self.device.recording = True
        self.device.modes.append((capture_error_mode, torch.is_inference_mode_enabled()))
        self.device.log.append(("begin", pool))

    def capture_end(self) -> None:
        self.device.recording = False
        self.device.modes.append(("end", torch.is_inference_mode_enabled()))
        self.device.log.append("end")
        if self.device.broken:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.ended = True
        self.alive.add(self.own)

    def replay(self) -> None:
        self.device.log.append("replay")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    recording_stream.cache_clear()
    device = Device()
    monkeypatch.setattr(torch, "cuda", device)
    yield device
    recording_stream.cache_clear()


@pytest.fixture
def graph(device: Device) -> Graph:
    return Graph(SPEC, device_facts("gfx942"))


def test_recordings_share_a_pool_and_run_once_before(device: Device, graph: Graph) -> None:
    out = torch.zeros(3)

    def step() -> torch.Tensor:
        device.log.append("run")
        return out

    replay = graph.record(step)
    wait, join = ("wait", Stream, Default), ("wait", Default, Stream)
    recorded = ["run", "end", join]
    assert device.log == ["new stream", wait, "run", "give back", ("begin", None), *recorded]
    device.log.clear()
    assert replay() is out
    assert device.log == ["replay"]
    device.log.clear()
    graph.record(step)
    assert device.log == [wait, "run", "give back", ("begin", (0, 1)), *recorded]


def test_behind_a_sleep_recordings_have_a_new_pool(
    device: Device, graph: Graph, monkeypatch
) -> None:
    """And none looks for garbage, for which a start has looked."""
    collected: list[bool] = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(True))
    for number in range(3):
        graph.record(lambda: torch.zeros(1))
        graph.record(lambda: torch.zeros(1))
        begun = [entry[1] is None for entry in device.log if entry[0] == "begin"]
        assert begun == [True, False], number
        device.log.clear()
        graph.rest()
    assert not collected


def test_calls_are_made_between_pieces(device: Device, graph: Graph) -> None:
    """And not while a piece is recorded."""
    out = torch.zeros(3)

    def call(name: str) -> None:
        assert not device.recording
        device.log.append(name)

    def step(between: Between) -> torch.Tensor:
        for name in ("a", "b"):
            device.log.append("run")
            between(lambda name=name: call(name))
        device.log.append("run")
        return out

    replay = graph.record_pieces(step)
    began = device.log.index(("begin", None))
    assert [entry for entry in device.log[:began] if entry in ("run", "a", "b")] == [
        "run", "a", "run", "b", "run",
    ]  # fmt: skip
    begins = [("begin", None), ("begin", (0, 1)), ("begin", (0, 1))]
    assert device.log[began:-1] == [entry for begin in begins for entry in (begin, "run", "end")]
    device.log.clear()
    assert replay() is out
    assert device.log == ["replay", "a", "replay", "b", "replay"]
    del replay
    gc.collect()
    graph.record(lambda: out)
    assert ("begin", (0, 1)) in device.log, "the pool outlives what was recorded in it"


def test_engines_have_pools_of_their_own_and_one_stream(device: Device) -> None:
    streams = []
    for _ in range(2):
        graph = Graph(SPEC, device_facts("gfx942"))
        graph.record(lambda: streams.append(device.current) or torch.zeros(1))
    assert len(set(streams)) == 1, "libraries keep a workspace for each stream, for ever"
    begun = [entry for entry in device.log if entry[0] == "begin"]
    assert begun == [("begin", None)] * 2


@pytest.mark.parametrize("inference", [False, True])
def test_what_a_process_keeps_is_made_outside_inference_mode(
    device: Device, graph: Graph, inference: bool
) -> None:
    modes = []
    with torch.inference_mode(inference):
        graph.record(lambda: modes.append(torch.is_inference_mode_enabled()) or torch.zeros(1))
        assert torch.is_inference_mode_enabled() is inference
    assert modes == [inference, inference]
    assert device.modes == [("thread_local", False), ("end", False)]


@pytest.mark.parametrize("when", [0, 1])
def test_a_failed_recording_leaves_the_process_fit_for_the_next(
    device: Device, graph: Graph, when: int
) -> None:
    """As one engine's failure must not become the next one's."""
    runs = iter(range(2))

    def fail() -> torch.Tensor:
        if next(runs) == when:
            device.broken = device.recording
            raise RuntimeError("operation not permitted")
        return torch.zeros(1)

    with torch.inference_mode(), pytest.raises(RuntimeError, match="not permitted"):
        graph.record(fail)
    assert isinstance(device.current, Default) and not device.recording
    device.broken = False
    assert gc.isenabled() and not torch.is_inference_mode_enabled()
    out = torch.ones(1)
    assert Graph(SPEC, device_facts("gfx942")).record(lambda: out)() is out


@pytest.mark.parametrize("pieces", [False, True])
def test_every_device_is_served(pieces: bool) -> None:
    assert supports(GraphSpec(8, pieces), device_facts("gfx942")).score == 100


@RECORDS
def test_on_a_device() -> None:
    graph = Graph(SPEC, device_facts("any", "cuda"))
    x, y = torch.ones(4, device="cuda"), torch.ones(2, device="cuda")
    double, halve = graph.record(lambda: x * 2), graph.record(lambda: y / 2)
    x.fill_(3)
    assert double().tolist() == [6] * 4
    y.fill_(8)
    assert halve().tolist() == [4] * 2


@RECORDS
def test_results_take_memory_only_once_on_a_device() -> None:
    graph, rows = Graph(SPEC, device_facts("any", "cuda")), 1 << 20
    x = torch.ones(rows, 16, device="cuda")
    steps = [
        lambda: (x * 1).T,
        lambda: (x * 2)[5:, 1:],  # does not begin where its memory does
        lambda: torch.mul(x[1:], 3, out=x.new_empty(rows - 1, 16, dtype=torch.float64)),
    ]
    replays = [graph.record(steps[0])]
    before = torch.cuda.memory_reserved()
    replays += [graph.record(lambda: x[: rows // 2] * 9) for _ in range(4)]
    assert torch.cuda.memory_reserved() == before
    replays[1:] = [graph.record(step) for step in steps[1:]]
    for value in (1, 2):
        x.fill_(value)
        results = [(replay().clone(), step()) for replay, step in zip(replays, steps, strict=True)]
        for result, wanted in results:
            assert torch.equal(result, wanted)


@RECORDS
def test_in_pieces_on_a_device() -> None:
    """What lies between them has another shape each time."""
    graph = Graph(SPEC, device_facts("any", "cuda"))
    x, shared = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    rows = 4

    def step(between: Between) -> torch.Tensor:
        y = x * 2
        shared.copy_(y)
        between(lambda: shared[:rows].add_(1))
        return y + shared

    replay = graph.record_pieces(step)
    for rows in (4, 1, 3):
        x.fill_(float(rows))
        assert replay().tolist() == [4 * rows + 1] * rows + [4 * rows] * (4 - rows)


@RECORDS
def test_one_after_another_on_a_device() -> None:
    """Recorded in inference mode and outside, the earlier ones dropped and kept."""
    x = torch.full((64, 64), 2.0, device="cuda", dtype=torch.bfloat16)
    kept = []
    for inference in (True, False, True, False):
        with torch.inference_mode(inference):
            graph = Graph(SPEC, device_facts("any", "cuda"))
            replays = [graph.record(lambda n=n: x[:n] @ x) for n in (64, 8)]
            assert [float(replay()[0, 0]) for replay in replays] == [256.0] * 2
        kept.append(replays[0])
    assert [float(replay()[0, 0]) for replay in kept] == [256.0] * 4
