"""The driver's calls for memory that processes share, with a library that writes them down."""

import ctypes

import pytest

from hotshoe.errors import EngineError
from hotshoe_cuda import peer_memory

ADDRESS, THERE = 0x7F00_0000_0000, 0x7E00_0000_0000


class Driver:
    """The functions that are called; `failing` names one that fails."""

    def __init__(self) -> None:
        self.called: list[tuple[object, ...]] = []
        self.failing = ""

    def __getattr__(self, name: str):
        def call(*arguments: object) -> int:
            self.called.append((name, *(getattr(a, "value", a) for a in arguments[1:])))
            given = getattr(arguments[0], "_obj", None) if arguments else None
            if name == "cuMemAlloc_v2":
                given.value = ADDRESS
            elif name == "cuIpcOpenMemHandle_v2":
                self.called[-1] = (name, bytes(arguments[1]), arguments[2].value)
                given.value = THERE
            elif name == "cuIpcGetMemHandle":
                ctypes.memset(ctypes.addressof(given), 7, ctypes.sizeof(given))
            elif name == "cuGetErrorString":
                arguments[1]._obj.value = b"invalid argument"
            return int(name == self.failing)

        return call


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found)
    return found


def test_memory_is_zeroed_before_anybody_hears_of_it(driver) -> None:
    memory = peer_memory.PeerMemory()
    assert memory.allocate(4096) == ADDRESS
    names = [name for name, *_ in driver.called]
    assert names == ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuCtxSynchronize"]
    assert driver.called[1][1:] == (0, 4096)


def test_handles_hold_any_byte(driver) -> None:
    memory = peer_memory.PeerMemory()
    handle = memory.handle(ADDRESS)
    assert handle == b"\7" * peer_memory.HANDLE_BYTES
    given = bytes(range(peer_memory.HANDLE_BYTES))
    assert memory.open(given) == THERE
    assert driver.called[-1] == ("cuIpcOpenMemHandle_v2", given, peer_memory.LAZY_PEER_ACCESS)


def test_a_refusal_says_what_helps(driver) -> None:
    driver.failing = "cuIpcOpenMemHandle_v2"
    with pytest.raises(EngineError, match=r"OpenMemHandle_v2 says invalid .*communicator=nccl"):
        peer_memory.PeerMemory().open(bytes(peer_memory.HANDLE_BYTES))
