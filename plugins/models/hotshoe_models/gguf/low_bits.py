"""Takes blocks of GGUF's types of one to three bits apart; see `blocks`.

Most are points of codebooks, with a sign for each number or a step up or down for all. Their
numbers come out as small integers with a scale and perhaps a minimum, exactly.
Source: the block structures of ggml (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hotshoe_models.gguf.codebooks import points_of, signs_of
from hotshoe_models.gguf.parts import Parts, bits, half, halves, less

#: How many words of 16 bits have 4 bits each of the scale of an IQ1_M block.
QUARTERS = 4


def _in_order(packed: Tensor, width: int) -> Tensor:
    """Unpack numbers of `width` bits from bytes [n, k], byte by byte: [n, 8 / width * k]."""
    return bits(packed, width).transpose(1, 2).flatten(1)


def _words(blocks: Tensor, dtype: torch.dtype) -> Tensor:
    """Read integers [n, k] of 16 or 32 bits, which have no sign, from bytes."""
    whole = torch.contiguous_format  # a copy, as a view may begin within a word
    found = blocks.clone(memory_format=whole).view(dtype).long()
    return found & (2 ** (8 * dtype.itemsize) - 1)


def _fields(words: Tensor, count: int, width: int) -> Tensor:
    """Return the lowest fields of words [n, k], each of `width` bits: [n, k * count]."""
    shifts = torch.arange(count) * width
    return ((words[..., None] >> shifts) & (2**width - 1)).flatten(1)


def _signed(book: str, codes: Tensor, signs: Tensor, width: int) -> Tensor:
    """Return points with a sign for each number: [n, 256]."""
    points = points_of(book)[codes.long()].view(len(codes), -1, 8)
    return (points * signs_of(width)[signs.long()]).flatten(1)


def _iq2_xxs(blocks: Tensor) -> Parts:
    pairs = blocks[:, 2:].reshape(-1, 8, 8)
    words = _words(pairs[..., 4:].flatten(1), torch.int32)
    d = half(blocks, 0) * (0.5 + (words >> 28)) * 0.25
    return Parts(_signed("IQ2_XXS", pairs[..., :4].flatten(1), _fields(words, 4, 7), 7), d)


def _by_sixteen(blocks: Tensor, at: int) -> Tensor:
    """Return scales of IQ2_XS and IQ2_S, each of 16 numbers."""
    return half(blocks, 0) * (0.5 + _in_order(blocks[:, at:], 4)) * 0.25


def _iq2_xs(blocks: Tensor) -> Parts:
    words = _words(blocks[:, 2:66], torch.int16)
    return Parts(_signed("IQ2_XS", words & 511, words >> 9, 7), _by_sixteen(blocks, 66))


def _iq2_s(blocks: Tensor) -> Parts:
    codes = blocks[:, 2:34].int() | (_in_order(blocks[:, 66:74], 2).int() << 8)
    return Parts(_signed("IQ2_S", codes, blocks[:, 34:66], 8), _by_sixteen(blocks, 74))


def _iq3_xxs(blocks: Tensor) -> Parts:
    words = _words(blocks[:, 66:], torch.int32)
    d = half(blocks, 0) * (0.5 + (words >> 28))
    return Parts(_signed("IQ3_XXS", blocks[:, 2:66], _fields(words, 4, 7), 7), d)


def _iq3_s(blocks: Tensor) -> Parts:
    """All numbers are odd, -15 to 15, so that they are 16 steps of two."""
    codes = blocks[:, 2:66].int() | (_in_order(blocks[:, 66:74], 1).int() << 8)
    odd = _signed("IQ3_S", codes, blocks[:, 74:106], 8)
    d = half(blocks, 0) * (1 + 2 * _in_order(blocks[:, 106:], 4).float())
    return Parts((odd + 15) >> 1, 2 * d, -15 * d)


def _iq1_s(blocks: Tensor) -> Parts:
    """Points of -1, 0 and 1 are moved by an eighth, all of a group alike."""
    words = _words(blocks[:, 34:], torch.int16)
    codes = blocks[:, 2:34].long() | (_fields(words, 4, 3) << 8)
    d = half(blocks, 0) * (2 * ((words >> 12) & 7) + 1)
    down = (words >> 15).float()
    return Parts(points_of("IQ1_S")[codes].flatten(1), d, d * (-0.875 - 0.25 * down))


def _iq1_m(blocks: Tensor) -> Parts:
    """Points of -1, 0 and 1 are moved by an eighth, those of eight numbers alike."""
    words = _words(blocks[:, 48:], torch.int16)
    scale = ((words >> 12) << (4 * torch.arange(QUARTERS))).sum(1, keepdim=True)
    d = scale.to(torch.int16).view(torch.float16).float() * (2 * _fields(words, 4, 3) + 1)
    high = _in_order(blocks[:, 32:48], 4)
    codes = blocks[:, :32].long() | ((high & 7).long() << 8)
    step = 1 - 2 * (high >> 3).to(torch.int8)
    return Parts((8 * less(points_of("IQ1_S")[codes], 1) + step[..., None]).flatten(1), d / 8)


def _tq1_0(blocks: Tensor) -> Parts:
    """Five digits of base 3 are a byte, which is a fraction; the last four bytes have four."""
    digits = [
        part[:, None] * (3 ** torch.arange(count))[:, None].to(torch.uint8)
        for part, count in ((blocks[:, :32], 5), (blocks[:, 32:48], 5), (blocks[:, 48:52], 4))
    ]
    fractions = torch.cat([part.flatten(1) for part in digits], 1)
    return Parts(less((fractions.short() * 3) >> 8, 1), half(blocks, 52))


def _tq2_0(blocks: Tensor) -> Parts:
    return Parts(less(halves(blocks[:, :64].contiguous(), 2, 32), 1), half(blocks, 64))


def _q1_0(blocks: Tensor) -> Parts:
    return Parts(less(2 * _in_order(blocks[:, 2:], 1), 1), half(blocks, 0))


def _q2_0(blocks: Tensor) -> Parts:
    return Parts(less(_in_order(blocks[:, 2:], 2), 1), half(blocks, 0))


LOW_BITS: dict[str, Callable[[Tensor], Parts]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
}
