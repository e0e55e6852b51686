"""Candidate `pinned` of slot `transfer`: page-locked host memory and events.

PyTorch's modules for a device have the same for every vendor, so all GPU platforms share this.
"""

import mmap
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import TransferSpec, Verdict, accept

SCORE = 100
#: Buffers of so many bytes are written first and locked then. So the first sleep of an 8B takes 1.9
#: seconds beside an H200, where the allocator for page-locked memory alone would take 8 or more. It
#: would also take a power of two for each adapter, and never give it back.
LARGE = 4 << 20


def supports(spec: TransferSpec, facts: DeviceFacts) -> Verdict:
    """Serve every device that has events."""
    return accept(SCORE)


def locked(module: ModuleType, nbytes: int) -> Tensor | None:
    """Return host memory that a device reads by itself; None where its runtime locks no pages.

    Args:
        module: PyTorch's, for the device's kind.
        nbytes: How much.
    """
    runtime = module.cudart() if hasattr(module, "cudart") else None
    if runtime is None:
        return None
    pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    memory = torch.frombuffer(pages, dtype=torch.uint8).zero_()
    if int(runtime.cudaHostRegister(memory.data_ptr(), nbytes, 0)):
        return None  # the allocator says why
    release = weakref.finalize(pages, runtime.cudaHostUnregister, memory.data_ptr())
    release.atexit = False  # the device may be gone by then
    return memory


class Transfer:
    """See `hotshoe.slots.TransferOp`. Copies go down the stream that computes, but for weights:
    these have a stream of their own, which joins a recording while one is made.

    A step begins with its upload, which makes the engine's device the thread's: the thread may be
    another one than took the device, or one whose last step was an engine's on another device.
    """

    def __init__(self, spec: TransferSpec, facts: DeviceFacts) -> None:
        self._module = torch.get_device_module(facts.device)
        self._index = torch.device(facts.device).index
        self._beside = self._module.Stream(facts.device) if spec.fetches else None

    def host_buffer(self, nbytes: int) -> Tensor:
        large = locked(self._module, nbytes) if nbytes >= LARGE else None
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True) if large is None else large

    def upload(self, source: Tensor, target: Tensor) -> None:
        if self._index is not None:
            self._module.set_device(self._index)
        target.copy_(source, non_blocking=True)

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        arrived = self._module.Event()
        arrived.record()

        def wait() -> Sequence[Tensor]:
            arrived.synchronize()
            return copies

        return wait

    def fetch(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        module, beside = self._module, self._beside
        beside.wait_stream(module.current_stream())
        with module.stream(beside):
            for source, target in copies:
                target.copy_(source, non_blocking=True)
            arrived = module.Event()
            arrived.record()
        return lambda: module.current_stream().wait_event(arrived)
