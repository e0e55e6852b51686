"""Brings inputs to a platform's device as they are laid out, and results back.

`Place` keeps strides and storage offsets, with everything between the rows, so that kernels see
the same non-contiguous tensors on every device. `poisoned` makes unwritten memory visible.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

#: Memory on both sides of every tensor that must stay as it is.
GUARD_BYTES = 256


class Place:
    """Copies tensors to one device, and remembers them.

    Args:
        device: As in `DeviceFacts.device`.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self._placed: list[tuple[Tensor, Tensor, Tensor, bool]] = []

    def __call__(self, tensor: Tensor, written: bool = False) -> Tensor:
        """Return a copy of the same size and strides on the device, NaN or ones around it.

        Args:
            tensor: What to copy.
            written: Whether the operation may write into it.
        """
        if not tensor.numel():
            return tensor.to(self.device, copy=True)
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        span = 1 + sum((size - 1) * step for size, step in steps)
        guard = GUARD_BYTES // tensor.itemsize
        here = torch.full((span + 2 * guard,), _filler(tensor)).to(tensor.dtype)
        here[guard : guard + span] = tensor.as_strided((span,), (1,))
        there = here.to(self.device, copy=True)
        self._placed.append((tensor, here, there, written))
        return there.as_strided(tensor.shape, tensor.stride(), guard)

    def overrun(self) -> str:
        """Say what was written where it must not be, empty for nothing.

        That is beside a tensor, between its rows, or within one that is to be read alone.
        """
        for tensor, here, there, written in self._placed:
            guard = GUARD_BYTES // tensor.itemsize
            changed = (_bytes(there.cpu()) != _bytes(here)).view(here.numel(), -1).any(1)
            if written:
                changed.as_strided(tensor.shape, tensor.stride(), guard).fill_(False)
            if changed.any():
                at = int(changed.nonzero()[0, 0]) - guard
                return f"element {at} of the memory of a {list(tensor.shape)} tensor was written"
        return ""

    def spoil(self) -> None:
        """Overwrite all that was placed so far, as its owner may once a call has returned."""
        for tensor, _, there, _ in self._placed:
            there.fill_(_filler(tensor))
        self._placed.clear()

    def empty(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Take device memory without filling it, however large."""
        return torch.empty(shape, dtype=dtype, device=self.device)

    def behind(self, tensor: Tensor, before: int, written: bool = False) -> Tensor:
        """Return the rows as the last ones of a tensor whose `before` first ones are not filled."""
        if not before:
            return self(tensor, written)
        room = self.empty(before + len(tensor), *tensor.shape[1:], dtype=tensor.dtype)
        room[before:].copy_(self(tensor))
        return room

    def synchronize(self) -> None:
        """Wait for the device; devices that never run behind have nothing to wait for."""
        wait = getattr(torch.get_device_module(self.device), "synchronize", None)
        if wait is not None:
            wait()

    def initialized(self) -> bool | None:
        """Tell whether the device has been initialized in this process; None: it cannot say."""
        try:
            module = torch.get_device_module(self.device)
        except RuntimeError:  # PyTorch has not heard of such a device yet
            return False
        asked = getattr(module, "is_initialized", None)
        return None if asked is None else bool(asked())


def _filler(tensor: Tensor) -> float:
    return float("nan") if tensor.is_floating_point() else 1


def _bytes(flat: Tensor) -> Tensor:
    return flat.contiguous().view(torch.uint8)


def padded(tensor: Tensor, extra: int, poison: float = float("nan")) -> Tensor:
    """Return equal values whose rows lie `extra` elements further apart, NaN in the gaps."""
    if not extra or not tensor.numel():
        return tensor
    rows, width = tensor.shape[0], tensor[0].numel()
    wide = torch.full((rows, width + extra), poison).to(tensor.dtype)
    view = wide[:, :width]
    view.copy_(tensor.reshape(rows, -1))
    return view.unflatten(1, tensor.shape[1:]) if tensor.dim() > 2 else view


@contextmanager
def poisoned() -> Iterator[None]:
    """Let PyTorch fill memory that is taken but not written: NaN, or the largest integer."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
