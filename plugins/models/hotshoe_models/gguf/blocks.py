"""Takes blocks of GGUF tensors apart, each type as ggml's format describes it.

A block is a row of bytes. Whatever its type, its numbers are d * q + m: small integers q, a scale d
for each group of 16 to 256 of them, and for some types a minimum m. Scales are float16 in the file,
or an exponent alone (MXFP4). Source: the block structures of ggml (ggml-common.h).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hotshoe_models.gguf.low_bits import LOW_BITS
from hotshoe_models.gguf.parts import Parts, bits, half, halves, less, nibbles

#: Values that are unpacked at once, so that all steps find them in a cache.
CHUNK = 2**19
#: The 16 values of IQ4_NL and IQ4_XS.
CODEBOOK = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)

#: The values of MXFP4 and NVFP4, doubled; for MXFP4, what is subtracted from the exponent of the
#: half scale.
FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
FP4_BIAS, NO_NUMBER = 128, 255


def dequantize(
    kind: str, blocks: Tensor, dtype: torch.dtype = torch.float32, name: str = "a tensor"
) -> Tensor:
    """Return the numbers of blocks [n, nbytes] of a type, computed in float32 and rounded once.

    Raises:
        CheckpointError: Scales are not finite.
    """
    take_apart = PARTS[kind]
    values = take_apart(blocks[:1]).q.shape[1]
    step = max(CHUNK // values, 1)
    result = torch.empty(blocks.shape[0], values, dtype=dtype)
    for begin in range(0, blocks.shape[0], step):
        parts = take_apart(blocks[begin : begin + step]).checked(name)
        result[begin : begin + step] = parts.numbers()
    return result


def _fifth_bits(blocks: Tensor, at: int) -> Tensor:
    """Read the 32 highest bits of a block of 5-bit numbers, in their place: [n, 32]."""
    return bits(blocks[:, at : at + 4], 1).transpose(1, 2).reshape(-1, 32) << 4


def _q4_0(blocks: Tensor) -> Parts:
    return Parts(less(nibbles(blocks[:, 2:]), 8), half(blocks, 0))


def _q4_1(blocks: Tensor) -> Parts:
    return Parts(nibbles(blocks[:, 4:]), half(blocks, 0), half(blocks, 2))


def _q5_0(blocks: Tensor) -> Parts:
    q = nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return Parts(less(q, 16), half(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    q = nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return Parts(q, half(blocks, 0), half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 2:].contiguous().view(torch.int8), half(blocks, 0))


def _q2_k(blocks: Tensor) -> Parts:
    q, scales = halves(blocks[:, 16:80].contiguous(), 2, 32), blocks[:, :16]
    d = half(blocks, 80) * (scales & 0xF).float()
    return Parts(q, d, -(half(blocks, 82) * (scales >> 4).float()))


def _q3_k(blocks: Tensor) -> Parts:
    low = halves(blocks[:, 32:96].contiguous(), 2, 32)
    high = bits(blocks[:, :32], 1).flatten(1)  # 8 times 32, as the numbers lie
    packed = blocks[:, 96:108]
    scales = nibbles(packed[:, :8]) | (bits(packed[:, 8:], 2).flatten(1) << 4)
    return Parts(less(low | (high << 2), 4), half(blocks, 108) * (scales.float() - 32))


def _with_minima(blocks: Tensor, q: Tensor) -> Parts:
    """Finish Q4_K and Q5_K, which have 8 scales and 8 minima of 6 bits each."""
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 0x3F, (third & 0xF) | ((first >> 6) << 4)), 1)
    minima = torch.cat((second & 0x3F, (third >> 4) | ((second >> 6) << 4)), 1)
    d, m = half(blocks, 0) * scales.float(), half(blocks, 2) * minima.float()
    return Parts(q.reshape(-1, 256), d, -m)


def _q4_k(blocks: Tensor) -> Parts:
    return _with_minima(blocks, nibbles(blocks[:, 16:].reshape(-1, 4, 32)))


def _q5_k(blocks: Tensor) -> Parts:
    low = nibbles(blocks[:, 48:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return _with_minima(blocks, low | (bits(blocks[:, 16:48], 1) << 4))


def _q6_k(blocks: Tensor) -> Parts:
    low = halves(blocks[:, :128].contiguous(), 4, 64)
    high = halves(blocks[:, 128:192].contiguous(), 2, 32)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return Parts(less(low | (high << 4), 32), half(blocks, 208) * scales)


def _looked_up(packed: Tensor, values: Sequence[int] = CODEBOOK) -> Tensor:
    return torch.tensor(values, dtype=torch.int8)[nibbles(packed).int()]


def _iq4_nl(blocks: Tensor) -> Parts:
    return Parts(_looked_up(blocks[:, 2:]), half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Parts:
    high = bits(blocks[:, 2:4], 2).transpose(1, 2).flatten(1)
    low = torch.stack((blocks[:, 4:8] & 0xF, blocks[:, 4:8] >> 4), 2).flatten(1)
    d = half(blocks, 0) * ((low | (high << 4)).float() - 32)
    return Parts(_looked_up(blocks[:, 8:].reshape(-1, 8, 16)).flatten(1), d)


def _mxfp4(blocks: Tensor) -> Parts:
    exponents = blocks[:, :1]
    d = torch.exp2(exponents.float() - FP4_BIAS).where(exponents != NO_NUMBER, torch.nan)
    return Parts(_looked_up(blocks[:, 1:], FP4_DOUBLED), d)


def _nvfp4(blocks: Tensor) -> Parts:
    """Numbers are doubled here, too; scales are floats of 8 bits without a sign."""
    d = (blocks[:, :4] & 0x7F).contiguous().view(torch.float8_e4m3fn).float() / 2
    return Parts(_looked_up(blocks[:, 4:].reshape(-1, 4, 8), FP4_DOUBLED).flatten(1), d)


PARTS: dict[str, Callable[[Tensor], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    **LOW_BITS,
}
