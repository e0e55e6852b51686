"""Reference of slot `transfer`: ordinary copies, each of which waits for the device."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.specs import TransferSpec


class Transfer:
    """See `hotshoe.slots.TransferOp`."""

    def __init__(self, spec: TransferSpec, facts: DeviceFacts) -> None:
        pass

    def host_buffer(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def upload(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def download(self, tensors: Sequence[Tensor]) -> Callable[[], Sequence[Tensor]]:
        copies = [tensor.to("cpu", copy=True) for tensor in tensors]
        return lambda: copies

    def fetch(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        for source, target in copies:
            target.copy_(source)
        return lambda: None
