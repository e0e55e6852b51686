"""The int8 method's operands, and what they do to a linear layer on the reference."""

import torch

from hotshoe.layers import BuildContext, Linear
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, QuantSpec, Selector
from hotshoe_quantization.int8 import Int8


def test_operands_of_any_layer():
    for name in ("model.layers.0.self_attn.q_proj", "anything"):
        weight, activation = Int8().operands(name)
        assert weight == QuantSpec("int8", "channel", online=True)
        assert activation == QuantSpec("int8", "token", dynamic=True)
        assert weight.symmetric and activation.symmetric and not weight.dynamic


def test_a_layer_quantised_while_loading():
    selector = Selector(SLOTS, [], DeviceFacts("plain", "cpu", "", "", 1 << 30, 1))
    ctx = BuildContext(selector, "float32", "float32", 4, 16, quantization=Int8())
    layer = Linear(ctx, [("a", 24), ("b", 8)], 64)
    a, b, x = torch.randn(24, 64), torch.randn(8, 64), torch.randn(5, 64)
    ctx.weights.feed("b.weight", b)
    ctx.weights.feed("a.weight", a)
    exact = x @ torch.cat((a, b)).T
    error = ((layer(x) - exact).norm() / exact.norm()).item()
    assert 1e-4 < error < 0.03
    (count,) = ctx.weight_bytes
    assert count() == 32 * 64 + 32 * 4
