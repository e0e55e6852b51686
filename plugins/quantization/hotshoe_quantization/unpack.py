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
        words: [..., n] of 32 bits, or bytes; with 3, 5 or 6 bits a multiple of as many, since
            numbers go on in the next word.
        bits: 2, 3, 4, 5, 6 or 8.

    Returns:
        [..., count] uint8.
    """
    octets, mask = words.contiguous().view(torch.uint8), (1 << bits) - 1
    if 8 % bits:
        runs = octets.unflatten(-1, (-1, bits)).to(torch.int16)  # of eight numbers
        parts = []
        for at, shift in (divmod(bits * i, 8) for i in range(8)):
            pair = runs[..., at] | runs[..., at + 1] << 8 if shift + bits > 8 else runs[..., at]
            parts.append((pair >> shift & mask).to(torch.uint8))
        octets = torch.stack(parts, dim=-1).flatten(-2)
    elif bits < 8:
        parts = [octets >> shift & mask for shift in range(0, 8, bits)]
        octets = torch.stack(parts, dim=-1).flatten(-2)
    return octets[..., :count]


def signed(values: Tensor, bits: int) -> Tensor:
    """Return unsigned integers less the half of their range, as int8."""
    half = 1 << (bits - 1)
    return (values.to(torch.int16) - half).to(torch.int8)


def signed_values(bits: int) -> tuple[int, ...] | None:
    """Return what `signed` makes of so few bits that it is worth knowing: of two."""
    return (-2, -1, 0, 1) if bits == 2 else None


def from_fp4(codes: Tensor) -> Tensor:
    """Return 4-bit floats, doubled, as int8: exactly."""
    table = torch.tensor(FP4_DOUBLED, dtype=torch.int8, device=codes.device)
    return table[codes.int()]


def in_order(values: Tensor, places: Sequence[int]) -> Tensor:
    """Put the columns of each run of them into order; places[i] says where the i-th one lies."""
    runs = values.unflatten(-1, (-1, len(places)))
    return runs[..., list(places)].flatten(-2)
