"""Candidate `pinned` of slot `transfer`, with device memory whose addresses outlast it.

The driver gives addresses and memory apart. What was recorded over addresses is repeated once there
is memory behind them again. The driver's library is called directly: PyTorch does so inside its
allocator alone.
Source: CUDA Driver API, section "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from functools import cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import EngineError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import TransferOp, TransferSpec
from hotshoe_triton.graph import Memory
from hotshoe_triton.transfer import Transfer

LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
#: Of enumerations: memory as programs have it, a device's, which reads and writes it; that a device
#: has all this; and the step of sizes that is needed at least.
PINNED, DEVICE, READ_WRITE, SUPPORTED, LEAST = 1, 1, 3, 102, 0
ALIGNMENT = 256


class Place(ctypes.Structure):
    """`CUmemLocation`."""

    _fields_ = (("type", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """`CUmemAllocationProp`."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("place", Place),
        ("attributes", c_void_p),
        ("compression", c_ubyte),
        ("rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    )


class Access(ctypes.Structure):
    """`CUmemAccessDesc`."""

    _fields_ = (("place", Place), ("flags", c_int))


class Driver:
    """The functions that are needed of it, for memory of one device.

    Raises:
        OSError: There is none.

    Args:
        index: The device, as CUDA counts.
    """

    def __init__(self, index: int) -> None:
        self._driver, self._index = ctypes.CDLL(LIBRARY), index
        self._place = Place(DEVICE, index)
        self._properties = Properties(type=PINNED, place=self._place)

    def supported(self) -> bool:
        """Return whether the device has memory and addresses apart."""
        device, found = c_int(), c_int()
        self._call("cuDeviceGet", byref(device), c_int(self._index))
        self._call("cuDeviceGetAttribute", byref(found), c_int(SUPPORTED), device)
        return bool(found.value)

    def granularity(self) -> int:
        """Return the bytes of which sizes are multiples."""
        step = c_size_t()
        self._call(
            "cuMemGetAllocationGranularity", byref(step), byref(self._properties), c_int(LEAST)
        )
        return step.value

    def reserve(self, nbytes: int) -> int:
        """Return the first of so many addresses."""
        address = c_uint64()
        self._call(
            "cuMemAddressReserve", byref(address), c_size_t(nbytes), c_size_t(0), c_uint64(0),
            c_uint64(0),
        )  # fmt: skip
        return address.value

    def take(self, address: int, nbytes: int) -> int:
        """Put memory behind addresses, and return its handle.

        Raises:
            torch.OutOfMemoryError: There is too little.
        """
        handle, size, begin = c_uint64(), c_size_t(nbytes), c_uint64(address)
        properties, access = byref(self._properties), Access(self._place, READ_WRITE)
        self._call("cuMemCreate", byref(handle), size, properties, c_uint64(0))
        try:
            self._call("cuMemMap", begin, size, c_size_t(0), handle, c_uint64(0))
            self._call("cuMemSetAccess", begin, size, byref(access), c_size_t(1))
        except (EngineError, torch.OutOfMemoryError):
            self._driver.cuMemUnmap(begin, size)
            self._driver.cuMemRelease(handle)
            raise
        return handle.value

    def give_back(self, address: int, nbytes: int, handle: int) -> None:
        """Take memory from behind addresses, once nothing is at work with it."""
        torch.cuda.synchronize(self._index)
        self._call("cuMemUnmap", c_uint64(address), c_size_t(nbytes))
        self._call("cuMemRelease", c_uint64(handle))

    def free(self, address: int, nbytes: int) -> None:
        """Give addresses back."""
        self._call("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            torch.OutOfMemoryError: There is too little memory.
            EngineError: It fails otherwise.
        """
        code = getattr(self._driver, name)(*arguments)
        if code == OUT_OF_MEMORY:
            free = torch.cuda.mem_get_info(self._index)[0]
            raise torch.OutOfMemoryError(f"{name} says so. {free / 2**30:.2f} GiB are free")
        if code:
            text = c_char_p()
            self._driver.cuGetErrorString(code, byref(text))
            cause = (text.value or b"unknown error").decode()
            raise EngineError(f"the driver grants no memory to wake up in: {name} says {cause}")


class Span:
    """Addresses, with memory behind them or without; both go with the last tensor over them."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self._driver = driver
        self._nbytes = -(-nbytes // driver.granularity()) * driver.granularity()
        self.address = driver.reserve(self._nbytes)
        self._handles: list[int] = []
        end = weakref.finalize(self, _end, driver, self.address, self._nbytes, self._handles)
        end.atexit = False  # the device may be gone by then
        self.take()

    def take(self) -> None:
        """See `hotshoe.slots.ReservedMemory`."""
        if self._handles:
            return
        try:
            handle = self._driver.take(self.address, self._nbytes)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            handle = self._driver.take(self.address, self._nbytes)
        self._handles.append(handle)

    def give_back(self) -> None:
        """See `hotshoe.slots.ReservedMemory`."""
        while self._handles:
            self._driver.give_back(self.address, self._nbytes, self._handles.pop())


def _end(driver: Driver, address: int, nbytes: int, handles: list[int]) -> None:
    while handles:
        driver.give_back(address, nbytes, handles.pop())
    driver.free(address, nbytes)


class Reserved:
    """See `hotshoe.slots.ReservedMemory`."""

    def __init__(self, driver: Driver, sizes: Sequence[int], device: str) -> None:
        padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        offsets = accumulate(padded, initial=0)
        torch.cuda.empty_cache()  # what a sleeper has left there
        span = Span(driver, sum(padded))
        self.tensors: Sequence[Tensor] = [
            torch.as_tensor(Memory(span.address + offset, size, span), device=device)
            for offset, size in zip(offsets, sizes, strict=False)
        ]
        self.take, self.give_back = span.take, span.give_back


class ReservingTransfer(Transfer):
    """See `hotshoe.slots.ReservingTransferOp`."""

    def __init__(self, spec: TransferSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._device = facts.device

    def reserve(self, sizes: Sequence[int]) -> Reserved:
        """See `hotshoe.slots.ReservingTransferOp`."""
        return Reserved(driver_of(self._device), sizes, self._device)


@cache
def driver_of(device: str) -> Driver:
    """Return the driver for a device, such as "cuda:0"."""
    return Driver(torch.device(device).index or 0)


def build(spec: TransferSpec, facts: DeviceFacts) -> TransferOp:
    """Return what reserves addresses where the driver does."""
    try:
        supported = driver_of(facts.device).supported()
    except (OSError, EngineError):
        supported = False
    return (ReservingTransfer if supported else Transfer)(spec, facts)
