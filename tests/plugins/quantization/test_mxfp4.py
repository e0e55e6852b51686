"""MXFP4 of plain weights: the numbers that the format's description says, as kernels get them."""

import pytest
import torch
from tests.plugins.quantization.writers import fp4

from hotshoe.errors import ConfigError
from hotshoe_quantization.mxfp4 import Online


def test_the_numbers_are_those_of_another_writer():
    weight = torch.randn(16, 96) * torch.exp2(torch.randint(-20, 20, (16, 1)).float())
    _, wanted = fp4(32, "mxfp4")(weight)
    made = Online().canonical("a", {"weight": [weight[:7], weight[7:]]})
    values, scale = (torch.cat(list(made[name])) for name in ("weight", "weight_scale"))
    assert set(values.abs().unique().tolist()) <= {0, 1, 2, 3, 4, 6, 8, 12}
    found = (values.view(16, 3, 32) * scale[..., None]).flatten(1)
    off = (found - wanted).abs() > 0  # only where two values are equally near
    assert ((found - weight).abs() <= (wanted - weight).abs() * (1 + 1e-5)).all()
    assert off.float().mean() < 0.01


def test_zeros_and_what_is_no_number():
    weight = torch.zeros(3, 64)
    weight[1, 40], weight[2, 3] = torch.nan, torch.inf
    made = Online().canonical("a", {"weight": [weight]})
    assert made["weight_scale"][0].isnan().nonzero().tolist() == [[1, 1], [2, 0]]
    assert not made["weight"][0][0].any() and (made["weight_scale"][0][0] > 0).all()


def test_four_bits_are_kept():
    stored = Online().storage("model.layers.0.mlp.up_proj", (8, 64))
    assert (stored.weight.format, stored.weight.group_size) == ("fp4_e2m1", 32)
    assert stored.activation is None
    with pytest.raises(ConfigError, match="groups of 32 do not divide the 48 inputs of a"):
        Online().storage("a", (8, 48))
