"""Differential attention: what a rank asks for, and heads that have no partner."""

import pytest
import torch
from tests.plugins.models.conftest import CPU

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext, Rotary, Rotation
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.differential import PARTS, DifferentialMixer
from hotshoe_models.spec import DecoderSpec, LayerSpec

ROTATION = Rotation((1.0, 0.1))
SPEC = DecoderSpec(
    vocab_size=8,
    hidden_size=16,
    layers=(LayerSpec(ROTATION), LayerSpec(ROTATION, mixer="differential")),
    norm_eps=1e-6,
    tied=False,
    num_heads=8,
    num_kv_heads=4,
    head_dim=4,
)


def mixer(size=1):
    selector = Selector(SLOTS, [], CPU)
    ctx = BuildContext(selector, "float32", "float32", 4, 64, rank=size - 1, size=size)
    rotaries = {ROTATION: Rotary.build(ROTATION, 64, "cpu", 1 << 30)}
    return ctx, DifferentialMixer(SPEC, ctx, 1, rotaries)


@pytest.mark.parametrize(("size", "heads"), [(1, (8, 4)), (2, (4, 2)), (4, (2, 2))])
def test_ranks_divide_pairs_of_heads(size, heads):
    ctx, _ = mixer(size)
    [asked] = [spec for slot, spec in ctx.selector.decisions if slot == "attention"]
    assert (asked.num_heads, asked.num_kv_heads) == heads
    assert len(ctx.cache_layers) == 2


def test_pairs_are_not_cut():
    with pytest.raises(ConfigError, match=r"does not divide the model's 4 pairs of heads"):
        mixer(8)


def test_the_factor_is_made_of_four_vectors():
    ctx, made = mixer()
    given = {part: torch.randn(4) for part in PARTS}
    for part, value in given.items():
        ctx.weights.feed(f"model.layers.1.self_attn.{part}", value)
    q1, k1, q2, k2 = (given[part].double() for part in PARTS)
    first = 0.8 - 0.6 * torch.tensor(-0.3, dtype=torch.float64).exp()
    right = (q1 @ k1).exp() - (q2 @ k2).exp() + first
    torch.testing.assert_close(made._factor.double(), right, rtol=1e-5, atol=1e-5)
    assert made.state().keys() == given.keys()


class Half:
    """Attention whose result is known, and lies where it is told to."""

    def __init__(self, attention, result, place=None):
        self.spec = attention.spec
        self._result, self._place = result, place

    def __call__(self, qkv, batch):
        return self._result if self._place is None else self._place.copy_(self._result)


def test_halves_may_leave_their_results_in_one_place():
    """As attention between recorded pieces does, whose result is the next one's, too."""
    ctx, made = mixer()
    for name, weight in ctx.weights.expected.items():
        ctx.weights.feed(name, torch.randn(weight.shape))
    layers, results = ctx.cache_layers, [torch.randn(5, 32) for _ in range(2)]
    found, hidden = [], torch.randn(5, 16)
    for place in (None, torch.empty(5, 32)):
        made._halves = [Half(a, r, place) for a, r in zip(layers, results, strict=True)]
        found.append(made(hidden, None, None))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1.*two halves of heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "two halves of heads"),
    ],
)
def test_heads_without_a_partner_are_named(build_family, values, message):
    with pytest.raises(CheckpointError, match=message):
        build_family("DiffLlama", **values)
