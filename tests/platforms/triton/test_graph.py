"""Recorded work; what is recorded needs a device, how it is done does not."""

import gc
import types
from contextlib import contextmanager

import pytest
import torch
from tests.platforms.triton.conftest import ON_DEVICE, device_facts

from hotshoe.slots import GraphSpec
from hotshoe_triton.graph import Graph, no_garbage, supports

SPEC = GraphSpec(8)


def test_nothing_is_collected_during_a_recording() -> None:
    assert gc.isenabled()
    with no_garbage():
        assert not gc.isenabled()
        with no_garbage():
            pass
        assert not gc.isenabled(), "whoever turned it off turns it on"
    assert gc.isenabled()


def test_recordings_share_a_pool_and_run_once_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    class Recording:
        def pool(self) -> tuple[int, int]:
            return (0, 7)

        def replay(self) -> None:
            calls.append("replay")

    @contextmanager
    def record(graph: Recording, pool: object):
        calls.append(("begin", pool))
        yield
        calls.append("end")

    monkeypatch.setattr(torch, "cuda", types.SimpleNamespace(CUDAGraph=Recording, graph=record))
    graph = Graph(SPEC, device_facts("gfx942"))
    out = torch.zeros(3)

    def step() -> torch.Tensor:
        calls.append("run")
        return out

    replay = graph.record(step)
    assert calls == ["run", ("begin", None), "run", "end"]
    calls.clear()
    assert replay() is out
    assert calls == ["replay"]
    graph.record(step)
    assert ("begin", (0, 7)) in calls


def test_every_device_is_served() -> None:
    assert supports(SPEC, device_facts("gfx942")).score == 100


@pytest.mark.skipif(not ON_DEVICE, reason="needs a GPU")
def test_on_a_device() -> None:
    graph = Graph(SPEC, device_facts("any", "cuda"))
    x, y = torch.ones(4, device="cuda"), torch.ones(2, device="cuda")
    double, halve = graph.record(lambda: x * 2), graph.record(lambda: y / 2)
    x.fill_(3)
    assert double().tolist() == [6] * 4
    y.fill_(8)
    assert halve().tolist() == [4] * 2
