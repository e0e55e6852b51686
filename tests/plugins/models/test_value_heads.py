"""Values that are made of keys, or normed without a weight, against float64."""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.value_heads import Values

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
SPEC = DecoderSpec(
    vocab_size=11,
    hidden_size=8,
    num_heads=3,
    num_kv_heads=2,
    head_dim=4,
    layers=(),
    norm_eps=1e-6,
    tied=True,
)


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_keys_and_queries_stay_as_they_are(copied, normed):
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32)
    spec = replace(SPEC, layers=(LayerSpec(None, keys_as_values=copied),), value_norm=normed)
    values = Values(spec, ctx, 0)
    given = torch.randn(5, (3 + 2 * (2 - copied)) * 4)
    made = values(given.clone())
    wanted = given[:, -8:].double().view(5, 2, 4)
    if normed:
        wanted = wanted * (wanted.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert torch.equal(made[:, :20], given[:, :20])
    assert made.shape == (5, 28)
    torch.testing.assert_close(made[:, 20:].double(), wanted.flatten(1), rtol=1e-5, atol=1e-6)
