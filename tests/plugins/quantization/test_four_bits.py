"""Words of GPTQ: how they are cut among ranks, and zero points at the ends of the range."""

import pytest
import torch
from tests.plugins.quantization.test_errors import GPTQ
from tests.plugins.quantization.writers import gptq

from hotshoe.errors import CheckpointError
from hotshoe.layers import Share
from hotshoe.loader.sources import Stream
from hotshoe_quantization import four_bits
from hotshoe_quantization.values import Values


def test_words_of_three_bits_are_cut_where_they_end() -> None:
    scheme = four_bits.gptq(Values(GPTQ | {"bits": 3}), 1)
    share = Share((slice(32, 64),), slice(64, 96))
    found = scheme.tensors("a", (96, 128), share)
    assert (found["qweight"].shape, found["qzeros"].shape) == ((12, 96), (4, 9))
    assert found["qweight"].pieces == ((slice(6, 9), slice(32, 64)),)
    assert found["qzeros"].pieces == ((slice(2, 3), slice(3, 6)),)
    with pytest.raises(CheckpointError, match="without cutting one"):
        scheme.tensors("a", (96, 128), Share((slice(0, 96),), slice(16, 48)))
    with pytest.raises(CheckpointError, match="words of 32/3 numbers do not fill"):
        four_bits.gptq(Values(GPTQ | {"bits": 3, "group_size": 16}), 1).storage("a", (96, 112))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_zero_points_of_zero(bits: int, version: int) -> None:
    """Version 1 stores 1 less, which is the largest number of so many bits."""
    weight = torch.rand(32, 64) * torch.tensor([1.0, -1.0]).repeat(16)[:, None]
    tensors, dense = gptq(bits, 32, False, version)(weight)
    scheme = four_bits.gptq(Values(GPTQ | {"bits": bits, "sym": False}), 2 - version)
    found = scheme.canonical("a", {name: [tensor] for name, tensor in tensors.items()})
    [values], [scale], [zero] = (
        found[name] for name in ("weight", "weight_scale", "weight_zero_point")
    )
    assert zero.min() == -(1 << (bits - 1)) and zero.max() == (1 << (bits - 1)) - 1
    steps = values.int().unflatten(1, (-1, 32)) - zero[..., None]
    torch.testing.assert_close((steps * scale[..., None]).flatten(1), dense)


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_groups_of_columns_are_integers(kind: torch.dtype) -> None:
    held = four_bits.read_gptq(GPTQ)
    groups = torch.arange(64) // 32
    assert list(held.decode(Stream([("a.g_idx", groups)])).names()) == []
    with pytest.raises(CheckpointError, match=r"a\.g_idx has columns out of order"):
        held.decode(Stream([("a.g_idx", groups.to(kind))]))
