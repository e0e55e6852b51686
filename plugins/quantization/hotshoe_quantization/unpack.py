"""Integers of two to eight bits out of 32-bit words, and other forms of single tensors."""

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
        words: [rows, n] int32, or bytes; with 3 bits a multiple of three, since numbers go on in
            the next word.
        bits: 2, 3, 4 or 8.

    Returns:
        [rows, count] uint8.
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 3:
        low, middle, high = octets.unflatten(-1, (-1, 3)).int().unbind(-1)
        run = low | middle << 8 | high << 16
        octets = torch.stack([(run >> 3 * i & 7).byte() for i in range(8)], dim=-1).flatten(-2)
    elif bits < 8:
        shifts = range(0, 8, bits)
        parts = [octets >> shift & ((1 << bits) - 1) for shift in shifts]
        octets = torch.stack(parts, dim=-1).flatten(-2)
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
