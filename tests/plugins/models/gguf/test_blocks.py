"""Every type against an implementation that is not ours, on blocks of random bytes."""

import gguf
import numpy as np
import pytest
import torch

from hotshoe_models.gguf import blocks
from hotshoe_models.gguf.blocks import PARTS, dequantize
from hotshoe_models.gguf.types import TYPES

#: Bytes at which float16 scales begin. MXFP4 and NVFP4 have a byte, and IQ1_M
#: four bits at a time.
SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q1_0", "Q2_0"), (0,)),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
    "IQ1_M": (),
    "NVFP4": (),
}
BLOCKS = {kind.name: kind for kind in TYPES.values() if kind.values > 1}


def draw(kind: str, count: int = 37) -> np.ndarray:
    """Make blocks of random bytes, whose scales are finite."""
    rng = np.random.default_rng()
    found = rng.integers(0, 256, (count, BLOCKS[kind].nbytes), dtype=np.uint8)
    if kind == "MXFP4":  # exponents
        found[:, 0] = rng.integers(120, 131, count)
    if kind == "NVFP4":  # floats of eight bits, the largest of which would be NaN
        found[:, :4] &= 0x5F
    if kind == "IQ1_M":
        found[:, 55] = 0x20 | (found[:, 55] & 0x8F)
    for at in SCALES[kind]:
        scales = rng.normal(0, 0.1, (count, 1)).astype(np.float16)
        found[:, at : at + 2] = scales.view(np.uint8)
    return found


def oracle(kind: str, data: np.ndarray) -> np.ndarray:
    if kind in ("Q1_0", "Q2_0"):  # which the package does not read
        scales = data[:, :2].copy().view(np.float16).astype(np.float32)
        ones = np.unpackbits(data[:, 2:], axis=1, bitorder="little").astype(np.float32)
        numbers = 2 * ones - 1 if kind == "Q1_0" else ones[:, ::2] + 2 * ones[:, 1::2] - 1
        return numbers * scales
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", PARTS)
def test_as_another_implementation(kind: str) -> None:
    data = draw(kind)
    found = dequantize(kind, torch.from_numpy(data))
    assert found.shape == (37, BLOCKS[kind].values) and found.isfinite().all()
    np.testing.assert_allclose(found.numpy(), oracle(kind, data), rtol=2e-6, atol=1e-6)
    assert found.abs().max() > 0


@pytest.mark.parametrize("kind", PARTS)
def test_chunks_make_no_difference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.from_numpy(draw(kind))
    whole = dequantize(kind, data)
    monkeypatch.setattr(blocks, "CHUNK", 256 * 5)
    assert torch.equal(dequantize(kind, data), whole)
    assert torch.equal(dequantize(kind, data, torch.bfloat16), whole.bfloat16())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_was_quantized_comes_back(kind: str) -> None:
    values = np.random.default_rng().normal(0, 1, (16, 64)).astype(np.float32)
    data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    found = dequantize(kind, torch.from_numpy(data).view(-1, BLOCKS[kind].nbytes))
    levels = 2 ** int(kind[1]) - 1
    assert (found.view(16, 64) - torch.from_numpy(values)).abs().max() < 9 / levels


def test_every_type_with_blocks_is_read() -> None:
    assert set(PARTS) == set(BLOCKS) == set(SCALES)
