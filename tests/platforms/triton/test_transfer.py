"""Copies go down the stream and are waited for by an event; on a device of a test's."""

import contextlib
import types

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, ON_DEVICE, device_facts

from hotshoe.slots import GraphSpec, TransferSpec
from hotshoe_triton.graph import Graph
from hotshoe_triton.transfer import LARGE, Transfer, locked, supports

SPEC = TransferSpec(2)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happens to events; page-locked memory is ordinary memory here."""
    calls: list[str] = []

    class Event:
        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("synchronize")

    module = types.SimpleNamespace(
        Event=Event, set_device=lambda index: calls.append(f"set_device {index}")
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k))  # noqa: PLW0108
    return calls


def test_a_download_waits_for_its_event_alone(events) -> None:
    transfer = Transfer(SPEC, device_facts("gfx942", "cpu"))
    source = [torch.arange(5), torch.randn(2, 3)]
    wait = transfer.download(source)
    assert events == ["record"]
    found = wait()
    assert events == ["record", "synchronize"]
    for ours, theirs in zip(found, source, strict=True):
        assert torch.equal(ours, theirs) and ours.data_ptr() != theirs.data_ptr()


def test_uploads_and_buffers(events) -> None:
    transfer = Transfer(SPEC, device_facts("gfx942", "cpu"))
    buffer = transfer.host_buffer(16)
    assert (buffer.shape, buffer.dtype) == ((16,), torch.uint8)
    target = torch.zeros(16, dtype=torch.uint8)
    transfer.upload(buffer.fill_(3), target)
    assert target.tolist() == [3] * 16
    assert events == []


def test_a_step_begins_by_taking_its_device(events) -> None:
    """As two engines in one thread want it, and one whose steps run in another thread."""
    engines = [Transfer(SPEC, device_facts("gfx942", f"cuda:{i}")) for i in (0, 1)]
    for i in (1, 0, 1):
        engines[i].upload(engines[i].host_buffer(4), torch.zeros(4, dtype=torch.uint8))
    assert events == ["set_device 1", "set_device 0", "set_device 1"]


def test_every_device_is_served() -> None:
    assert supports(SPEC, device_facts("gfx942")).score == 100


def test_weights_have_a_stream_that_follows_and_is_followed(events, monkeypatch) -> None:
    class Stream:
        def __init__(self, name: str) -> None:
            self.name = name

        def wait_stream(self, other) -> None:
            events.append(f"{self.name} follows {other.name}")

        def wait_event(self, event) -> None:
            events.append(f"{self.name} waits")

    module = torch.get_device_module("any")
    module.Stream = lambda device: Stream("copies")
    module.current_stream = lambda: Stream("work")
    module.stream = lambda stream: contextlib.nullcontext()
    transfer = Transfer(TransferSpec(2, fetches=True), device_facts("gfx942", "cpu"))
    source, target = torch.randn(3, 5), torch.zeros(3, 5)
    arrive = transfer.fetch([(source, target)])
    assert events == ["copies follows work", "record"]
    arrive()
    assert events[2:] == ["work waits"]
    assert torch.equal(source, target)


@pytest.mark.skipif(not ON_DEVICE, reason="needs a GPU")
def test_weights_arrive_in_recordings_too() -> None:
    transfer = Transfer(TransferSpec(2, fetches=True), device_facts("any", DEVICE))
    held = [transfer.host_buffer(4 << 20).view(torch.float32) for _ in range(4)]
    targets = [torch.empty(1 << 20, device=DEVICE) for _ in range(2)]

    def step() -> torch.Tensor:
        total, wait = torch.zeros(1 << 20, device=DEVICE), transfer.fetch([(held[0], targets[0])])
        for i in range(4):
            wait()
            if i < 3:
                wait = transfer.fetch([(held[i + 1], targets[(i + 1) % 2])])
            total = total * 2 + targets[i % 2]
        return total

    replay = Graph(GraphSpec(1), device_facts("any", DEVICE)).record(step)
    for _ in range(3):
        values = torch.randint(100, (4,)).tolist()
        for buffer, value in zip(held, values, strict=True):
            buffer.fill_(value)
        wanted = sum(value << (3 - i) for i, value in enumerate(values))
        for found in (step(), replay()):
            assert (found.cpu() == wanted).all()


class Runtime:
    """Locks pages, unless it refuses."""

    def __init__(self, refusal: int = 0) -> None:
        self.refusal, self.locked = refusal, dict[int, int]()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 0
        if not self.refusal:
            self.locked[address] = nbytes
        return self.refusal

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]


def test_large_buffers_are_locked_while_they_live() -> None:
    runtime = Runtime()
    memory = locked(types.SimpleNamespace(cudart=lambda: runtime), 5000)
    assert memory is not None and (memory.shape, memory.dtype) == ((5000,), torch.uint8)
    part = memory[100:]
    del memory
    assert runtime.locked == {part.data_ptr() - 100: 5000}
    del part
    assert not runtime.locked


def test_pages_that_no_runtime_locks() -> None:
    assert locked(types.SimpleNamespace(), 5000) is None
    assert locked(types.SimpleNamespace(cudart=lambda: Runtime(2)), 5000) is None


@pytest.mark.skipif(not ON_DEVICE, reason="needs a GPU")
def test_large_buffers_on_a_device() -> None:
    transfer = Transfer(SPEC, device_facts("any", DEVICE))
    for _ in range(2):  # the second may lie where the first did
        host = transfer.host_buffer(LARGE + 4096)
        assert host.is_pinned() and len(host) == LARGE + 4096
        host.random_()
        device = torch.zeros(len(host), dtype=torch.uint8, device=DEVICE)
        transfer.upload(host, device)
        assert torch.equal(device.cpu(), host)
        del host


@pytest.mark.skipif(not ON_DEVICE, reason="needs a GPU")
def test_on_a_device() -> None:
    transfer = Transfer(SPEC, device_facts("any", DEVICE))
    host = transfer.host_buffer(64)
    assert host.is_pinned()
    host.copy_(torch.arange(64, dtype=torch.uint8))
    device = torch.zeros(64, dtype=torch.uint8, device=DEVICE)
    transfer.upload(host, device)
    slow = torch.randn(4096, 4096, device=DEVICE)
    for _ in range(50):
        slow = slow @ slow / 4096
    [bytes_, row] = transfer.download([device, slow[0].isfinite()])()
    assert bytes_.tolist() == list(range(64)) and row.all()
