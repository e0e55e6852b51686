"""Addresses that outlast their memory, with a library that holds the driver's rules; on a GPU, what
was recorded over them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import DEVICE, ON_DEVICE, device_facts

from hotshoe.errors import EngineError
from hotshoe.slots import GraphSpec, ReservingTransferOp, TransferSpec
from hotshoe_cuda import reserved
from hotshoe_triton.graph import Graph, Memory
from hotshoe_triton.transfer import Transfer

STEP = 2 << 20
SPEC = TransferSpec(2)
INVALID, NO_SUCH_LIBRARY = 1, "cannot open shared object file"
ON_CUDA = pytest.mark.skipif(not ON_DEVICE or DEVICE != "cuda", reason="needs an NVIDIA GPU")


def value(argument: Any) -> int:
    return int(argument.value)


class Library:
    """The functions that are called, over a device of so many bytes. They hold the driver's rules:
    what is mapped cannot be mapped, released or freed; access comes last."""

    def __init__(self, memory: int = 8 * STEP, supported: bool = True) -> None:
        self.free, self.supported = memory, supported
        self.addresses: dict[int, Any] = {}
        self.handles: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.readable: set[int] = set()
        self.waited = 0
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def call(self, name: str, *arguments: Any) -> int:
        return INVALID if name == self.failing else getattr(self, f"_{name}")(*arguments)

    def _cuDeviceGet(self, device: Any, index: Any) -> int:
        device._obj.value = 40 + value(index)
        return 0

    def _cuDeviceGetAttribute(self, found: Any, which: Any, device: Any) -> int:
        assert (value(which), value(device)) == (102, 41)
        found._obj.value = self.supported
        return 0

    def _cuMemGetAllocationGranularity(self, step: Any, properties: Any, option: Any) -> int:
        assert value(option) == 0
        step._obj.value = STEP
        return 0

    def _cuMemAddressReserve(
        self, address: Any, size: Any, align: Any, wish: Any, flags: Any
    ) -> int:
        assert value(size) % STEP == 0 and value(align) == value(wish) == value(flags) == 0
        memory = ctypes.create_string_buffer(value(size))
        address._obj.value = ctypes.addressof(memory)
        self.addresses[address._obj.value] = memory
        return 0

    def _cuMemAddressFree(self, address: Any, size: Any) -> int:
        assert value(address) not in self.mapped
        assert len(self.addresses.pop(value(address))) == value(size)
        return 0

    def _cuMemCreate(self, handle: Any, size: Any, properties: Any, flags: Any) -> int:
        found = properties._obj
        assert (found.type, found.place.type, found.place.id) == (1, 1, 1)
        assert (found.handle_types, found.attributes, value(flags)) == (0, None, 0)
        if value(size) > self.free:
            return 2
        self.free -= value(size)
        handle._obj.value = 1000 + len(self.handles)
        self.handles[handle._obj.value] = value(size)
        return 0

    def _cuMemMap(self, address: Any, size: Any, offset: Any, handle: Any, flags: Any) -> int:
        assert value(address) not in self.mapped and self.handles[value(handle)] == value(size)
        assert value(offset) == value(flags) == 0
        self.mapped[value(address)] = value(handle)
        return 0

    def _cuMemSetAccess(self, address: Any, size: Any, access: Any, count: Any) -> int:
        found = access._obj
        assert value(address) in self.mapped and value(count) == 1
        assert (found.place.type, found.place.id, found.flags) == (1, 1, 3)
        self.readable.add(value(address))
        return 0

    def _cuMemUnmap(self, address: Any, size: Any) -> int:
        if self.mapped.pop(value(address), None) is None:
            return INVALID
        if value(address) in self.readable:
            assert self.waited, "something may be at work there"
        self.readable.discard(value(address))
        self.waited = 0
        return 0

    def _cuMemRelease(self, handle: Any) -> int:
        assert value(handle) not in self.mapped.values()
        self.free += self.handles.pop(value(handle))
        return 0

    def _cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = b"invalid argument"
        return 0


class Loaded:
    """The library as `ctypes` gives it."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._library.call(name, *arguments)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Loaded(found))

    def wait(index: int) -> None:
        assert index == 1
        found.waited = 1

    monkeypatch.setattr(torch.cuda, "synchronize", wait)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (found.free, 0))
    monkeypatch.setattr(torch, "as_tensor", seen)
    reserved.driver_of.cache_clear()
    yield found
    reserved.driver_of.cache_clear()


def seen(part: Memory, device: str) -> torch.Tensor:
    """Read the interface as PyTorch does, which keeps the object."""
    said = part.__cuda_array_interface__
    assert (said["typestr"], said["version"], device) == ("|u1", 3, "cuda:1")
    memory = (ctypes.c_ubyte * said["shape"][0]).from_address(said["data"][0])
    memory.part = part
    return torch.frombuffer(memory, dtype=torch.uint8)


def transfer() -> Any:
    return reserved.build(SPEC, device_facts("sm_90", "cuda:1"))


def test_addresses_outlast_memory(library: Library) -> None:
    memory = transfer().reserve([5, STEP, 300])
    assert library.free == 6 * STEP and len(library.readable) == 1
    begin = next(iter(library.addresses))
    places = [tensor.data_ptr() - begin for tensor in memory.tensors]
    assert places == [0, 256, 256 + STEP] and [*map(len, memory.tensors)] == [5, STEP, 300]
    for number, tensor in enumerate(memory.tensors):
        tensor.fill_(number)
    assert [int(tensor.sum()) for tensor in memory.tensors] == [0, STEP, 600]
    for _ in range(2):
        for _ in range(2):  # the second time nothing happens
            memory.give_back()
            assert library.free == 8 * STEP and not library.mapped and not library.handles
        for _ in range(2):
            memory.take()
            assert library.free == 6 * STEP and library.readable == {begin}


@pytest.mark.parametrize("there", [True, False])
def test_all_goes_with_the_last_tensor(library: Library, there: bool) -> None:
    memory = transfer().reserve([5, 6])
    if not there:
        memory.give_back()
    last = memory.tensors[1]
    del memory
    assert library.addresses
    del last
    assert not library.addresses and not library.handles and library.free == 8 * STEP


def test_a_full_device_takes_nothing(library: Library) -> None:
    memory = transfer().reserve([7 * STEP])
    memory.give_back()
    library.free = STEP
    with pytest.raises(torch.OutOfMemoryError, match=r"cuMemCreate .*\. 0\.00 GiB are free"):
        memory.take()
    with pytest.raises(torch.OutOfMemoryError):
        transfer().reserve([2 * STEP])
    assert library.free == STEP and len(library.addresses) == 1
    library.free = 7 * STEP
    memory.take()


@pytest.mark.parametrize("failing", ["cuMemMap", "cuMemSetAccess"])
def test_what_fails_half_way_is_undone(library: Library, failing: str) -> None:
    library.failing = failing
    with pytest.raises(EngineError, match=f"{failing} says invalid argument"):
        transfer().reserve([5])
    assert library.free == 8 * STEP and not library.addresses and not library.mapped


def test_who_cannot_does_not_say_so(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(transfer(), ReservingTransferOp)
    for spoil in ({"supported": False}, {"failing": "cuDeviceGet"}):
        for name, wrong in spoil.items():
            monkeypatch.setattr(library, name, wrong)
        found = transfer()
        assert isinstance(found, Transfer) and not isinstance(found, ReservingTransferOp)

    def missing(name: str) -> None:
        raise OSError(NO_SUCH_LIBRARY)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    reserved.driver_of.cache_clear()
    assert not isinstance(transfer(), ReservingTransferOp)


@ON_CUDA
def test_recordings_outlast_it_on_a_device() -> None:
    facts = device_facts("any", "cuda:0")
    op = reserved.build(SPEC, facts)
    assert isinstance(op, ReservingTransferOp)
    nbytes = 1 << 30

    def free() -> int:
        torch.cuda.synchronize()
        return torch.cuda.mem_get_info()[0]

    memory = op.reserve([1000, nbytes])
    x = memory.tensors[1].view(torch.bfloat16).view(-1, 1024)
    assert not x.untyped_storage().resizable()
    y = torch.randn(1024, 16, device="cuda", dtype=torch.bfloat16)
    replay = Graph(GraphSpec(1), facts).record(lambda: x[-512:] @ y)
    host = op.host_buffer(nbytes)
    address = x.data_ptr()
    for seed in range(3):
        torch.manual_seed(seed)
        host.view(torch.bfloat16).normal_()
        op.upload(host, memory.tensors[1])
        wanted = host.view(torch.bfloat16).view(-1, 1024)[-512:].cuda() @ y
        assert torch.equal(replay(), wanted)
        taken = free()
        memory.give_back()
        assert free() - taken >= nbytes
        held = torch.full((nbytes // 8,), float("nan"), device="cuda")  # somebody else's
        memory.take()
        assert x.data_ptr() == address
        del held
