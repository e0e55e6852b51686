"""Integers of four or eight bits out of 32-bit words, and other forms of single tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

#: The values of a 4-bit float (one sign bit, two of exponent, one of mantissa), doubled.
#: Source: OCP Microscaling Formats (MX) Specification 1.0, 5.3.3.
FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def unpack(words: Tensor, bits: int, count: int) -> Tensor:
    """Return the first `count` unsigned integers of each row, the lowest bits of a word first.

    Args:
        words: [rows, n] int32, or bytes.
        bits: 4 or 8.

    Returns:
        [rows, count] uint8.
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 4:
        octets = torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)
    return octets[..., :count]


def signed(values: Tensor, bits: int) -> Tensor:
    """Return unsigned integers less the half of their range, as int8."""
    half = 1 << (bits - 1)
    return (values.to(torch.int16) - half).to(torch.int8)


def from_fp4(codes: Tensor) -> Tensor:
    """Return 4-bit floats, doubled, as int8: exactly."""
    table = torch.tensor(FP4_DOUBLED, dtype=torch.int8, device=codes.device)
    return table[codes.int()]


def in_order(values: Tensor, places: Sequence[int]) -> Tensor:
    """Put the columns of each run of them into order; places[i] says where the i-th one lies."""
    runs = values.unflatten(-1, (-1, len(places)))
    return runs[..., list(places)].flatten(-2)
