"""The device's own kernels: what a vendor would write in its language, here in plain PyTorch.

`launch` is the whole runtime that they need: outputs, inputs, and a function over the content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import NormSpec, TransferSpec
from hotshoe_sim.device import QUEUE, SimTensor


def launch(kernel: Callable[..., None], *tensors: Tensor) -> None:
    """Queue a kernel over device tensors, the first of which it writes."""
    for tensor in tensors:
        assert isinstance(tensor, SimTensor), f"a kernel got a tensor on {tensor.device}"
    cells = [tensor.cell for tensor in tensors]  # type: ignore[attr-defined]
    QUEUE.submit(lambda: kernel(*(cell.read() for cell in cells)))


def build_norm(spec: NormSpec, facts: DeviceFacts) -> Callable[[Tensor, Tensor], Tensor]:
    """Build candidate `sim` of slot `rms_norm`."""

    def kernel(out: Tensor, x: Tensor, weight: Tensor) -> None:
        # Row by row, as one core of the device would, so that no row depends on another.
        for row, y in zip(x.double(), out, strict=True):
            scale = torch.rsqrt(row.square().mean() + spec.eps)
            y.copy_(row * scale * (weight.double() + spec.weight_offset))

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        launch(kernel, out, x, weight)
        return out

    return norm


class Transfer:
    """Candidate `queue` of slot `transfer`: copies take their turn, and nobody waits."""

    def __init__(self, spec: TransferSpec, facts: DeviceFacts) -> None:
        pass

    def host_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        copies: list[Tensor] = []
        cells = [tensor.cell for tensor in tensors]  # type: ignore[attr-defined]
        QUEUE.submit(lambda: copies.extend(cell.read().clone() for cell in cells))

        def arrive() -> Sequence[Tensor]:
            QUEUE.wait()
            return copies

        return arrive
