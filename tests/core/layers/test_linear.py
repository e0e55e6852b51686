"""The linear layer: parts stacked in order whatever the loading order, and let go of afterwards."""

import random
import weakref

import pytest
import torch

from hotshoe.layers import Linear
from hotshoe.slots import LinearSpec, QuantSpec

PARTS = [("q", 6), ("k", 2), ("v", 3)]
WEIGHT = QuantSpec("int8", "channel", online=True)
ACTIVATION = QuantSpec("int8", "token", dynamic=True)


class Method:
    """Quantises all but one layer."""

    def operands(self, layer_name):
        return (None, None) if layer_name == "plain" else (WEIGHT, ACTIVATION)


def draw(bias):
    tensors = {f"{name}.weight": torch.randn(size, 5) for name, size in PARTS}
    if bias:
        tensors |= {f"{name}.bias": torch.randn(size) for name, size in PARTS}
    return tensors


@pytest.mark.parametrize("bias", [False, True])
def test_parts_are_stacked_whatever_the_order(ctx, bias):
    layer = Linear(ctx, PARTS, 5, bias=bias)
    tensors = draw(bias)
    names = random.sample(list(tensors), len(tensors))
    for name in names:
        ctx.weights.feed(name, tensors[name])
    ctx.weights.check_complete()
    x = torch.randn(4, 5)
    expected = torch.cat([x @ tensors[f"{name}.weight"].T for name, _ in PARTS], 1)
    if bias:
        expected += torch.cat([tensors[f"{name}.bias"] for name, _ in PARTS])
    torch.testing.assert_close(layer(x), expected)


def test_checkpoint_tensors_are_let_go(ctx):
    layer = Linear(ctx, PARTS, 5)
    tensors = draw(False)
    alive = [weakref.ref(t) for t in tensors.values()]
    for name in list(tensors):
        ctx.weights.feed(name, tensors.pop(name))
    assert [ref() for ref in alive] == [None] * len(PARTS)
    assert layer(torch.ones(1, 5)).isfinite().all()


def test_the_size_of_the_prepared_weight_is_registered(ctx):
    Linear(ctx, [("w", 8)], 5)
    ctx.weights.feed("w.weight", torch.randn(8, 5))
    assert [count() for count in ctx.weight_bytes] == [8 * 5 * 4]


def specs(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "linear"]


def test_the_method_says_what_is_quantised_and_the_model_what_is_not(ctx):
    ctx.quantization = Method()
    Linear(ctx, [("a", 8), ("b", 8)], 5)
    Linear(ctx, [("plain", 8)], 5)
    Linear(ctx, [("head", 7)], 5, out_dtype="float64", quantize=False)
    assert specs(ctx) == [
        LinearSpec(5, 16, "float32", weight=WEIGHT, activation=ACTIVATION),
        LinearSpec(5, 8, "float32"),
        LinearSpec(5, 7, "float32", out_dtype="float64"),
    ]
