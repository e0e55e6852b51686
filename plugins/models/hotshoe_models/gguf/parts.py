"""The parts of blocks of GGUF tensors, and small numbers taken out of bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError


class Parts(NamedTuple):
    """What n blocks are made of.

    Attributes:
        q: [n, values] int8 or uint8.
        d: [n, groups] float32.
        m: [n, groups] float32; None where q is signed and nothing is added.
    """

    q: Tensor
    d: Tensor
    m: Tensor | None = None

    def numbers(self) -> Tensor:
        """Return [n, values] float32."""
        grouped = self.q.float().view(*self.d.shape, -1) * self.d[..., None]
        return (grouped if self.m is None else grouped + self.m[..., None]).flatten(1)

    def checked(self, name: str) -> Parts:
        """Return them, if scales and minima are finite.

        Raises:
            CheckpointError: Some are not.
        """
        if not all(bool(part.isfinite().all()) for part in (self.d, self.m) if part is not None):
            raise CheckpointError(
                f"{name} has scales that are NaN or infinite; fetch or convert the file again"
            )
        return self


def half(blocks: Tensor, at: int) -> Tensor:
    """Read a float16 at a byte of each block: [n, 1] float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def less(q: Tensor, middle: int) -> Tensor:
    """Return unsigned integers, below 128, less the middle of their range."""
    return q.to(torch.int8) - middle


def nibbles(packed: Tensor) -> Tensor:
    """Unpack 4-bit numbers: all low halves of the bytes [..., k], then all high halves."""
    return torch.cat((packed & 0xF, packed >> 4), -1)


def bits(packed: Tensor, width: int) -> Tensor:
    """Unpack numbers of `width` bits from bytes [..., k], lowest first: [..., 8 / width, k]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)[:, None]
    return (packed.unsqueeze(-2) >> shifts) & (2**width - 1)


def halves(packed: Tensor, width: int, num_bytes: int) -> Tensor:
    """Unpack numbers of a super-block of 256, which lie by halves: [n, 256].

    Each `num_bytes` bytes hold 128 numbers or more: first the lowest bits of all bytes, then the
    next ones.
    """
    return bits(packed.view(-1, packed.shape[1] // num_bytes, num_bytes), width).flatten(1)
