"""The linear layer: parts stacked in order whatever the loading order, and let go of afterwards."""

import random

import pytest
import torch

from hotshoe.errors import SelectionError
from hotshoe.layers import BuildContext, Linear, Matrix, OnlineFormat, Storage
from hotshoe.slots import SLOTS, Candidate, LinearSpec, QuantSpec, Selector, refuse
from hotshoe.slots.reference.linear import Linear as Kernel

PARTS = [("q", 6), ("k", 2), ("v", 3)]
WEIGHT = QuantSpec("int8", "channel", online=True)
ACTIVATION = QuantSpec("int8", "token", dynamic=True)


class Method(OnlineFormat):
    """Quantizes all but one layer."""

    def storage(self, layer, shape):
        return None if layer == "plain" else Storage(WEIGHT, ACTIVATION)


def draw(bias):
    tensors = {f"{name}.weight": torch.randn(size, 5) for name, size in PARTS}
    if bias:
        tensors |= {f"{name}.bias": torch.randn(size) for name, size in PARTS}
    return tensors


@pytest.mark.parametrize("bias", [False, True])
def test_parts_are_stacked_whatever_the_order(ctx, bias):
    layer = Linear(ctx, Matrix(ctx, PARTS, 5, bias=bias))
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


def test_the_size_of_the_prepared_weight_is_registered(ctx):
    Linear(ctx, Matrix(ctx, [("w", 8)], 5))
    ctx.weights.feed("w.weight", torch.randn(8, 5))
    assert [count() for count in ctx.weight_bytes] == [8 * 5 * 4]


def specs(ctx):
    return [spec for slot, spec in ctx.selector.decisions if slot == "linear"]


def test_the_method_says_what_is_quantized_and_the_model_what_is_not(ctx):
    ctx.format = Method()
    Linear(ctx, Matrix(ctx, [("a", 8), ("b", 8)], 5))
    Linear(ctx, Matrix(ctx, [("plain", 8)], 5))
    Linear(ctx, Matrix(ctx, [("head", 7)], 5, quantize=False), out_dtype="float16")
    assert specs(ctx) == [
        LinearSpec(5, 16, "float32", weight=WEIGHT, activation=ACTIVATION),
        LinearSpec(5, 8, "float32"),
        LinearSpec(5, 7, "float32", out_dtype="float16"),
    ]


def test_a_form_without_a_kernel_is_refused_in_one_line(ctx):
    form = QuantSpec("int4", "group", 32, symmetric=False)

    class Packed(OnlineFormat):
        def storage(self, layer, shape):
            return Storage(form)

    candidate = Candidate(
        "linear", "swift", lambda spec, facts: refuse(f"not {spec.weight}"), Kernel
    )
    selector = Selector(SLOTS, [candidate], ctx.selector.facts, require_native=True)
    own = BuildContext(selector, "float32", "float32", 4, 32, format=Packed())
    said = (
        r"^a\.down\.weight: no candidate of slot linear that --require-native allows on \w+ "
        r"serves weights in int4 by group of 32 with zero points \[6, 64\] with x in float32: "
        r"swift: not int4 by group of 32 with zero points; leave the flag out, or use another form"
    )
    with pytest.raises(SelectionError, match=said):
        Linear(own, Matrix(own, [("a.down", 6)], 64))
