"""Memory of this GPU that other processes' GPUs read and write, through the driver's handles.

The driver's library is called directly: PyTorch offers such memory together with switch multicast,
which nothing here needs, and which is tried unless the environment forbids it.
Source: CUDA Driver API, section "Memory Management", cuIpc functions.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_size_t, c_ubyte, c_uint, c_uint64
from typing import Any

from hotshoe.errors import EngineError

LIBRARY = "libcuda.so.1"
HANDLE_BYTES = 64
LAZY_PEER_ACCESS = 1


class Handle(ctypes.Structure):
    """What another process opens the memory with."""

    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


class PeerMemory:
    """The driver, in the context of the calling thread's current device.

    Memory lives as long as its process: others may still read it when this rank leaves.
    """

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(LIBRARY)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, all zeros."""
        address = c_uint64()
        self._call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        self._call("cuMemsetD8_v2", address, c_ubyte(0), c_size_t(nbytes))
        self._call("cuCtxSynchronize")
        return address.value

    def handle(self, address: int) -> bytes:
        """Return what another process opens the memory with, HANDLE_BYTES long."""
        handle = Handle()
        self._call("cuIpcGetMemHandle", byref(handle), c_uint64(address))
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        """Return the address of another process's memory, here."""
        address = c_uint64()
        given = Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", byref(address), given, c_uint(LAZY_PEER_ACCESS))
        return address.value

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            EngineError: It fails.
        """
        code = getattr(self._driver, name)(*arguments)
        if code:
            text = c_char_p()
            self._driver.cuGetErrorString(code, byref(text))
            cause = (text.value or b"unknown error").decode()
            raise EngineError(
                f"memory cannot be shared among GPUs: {name} says {cause}; "
                "--kernel communicator=nccl does without"
            )
