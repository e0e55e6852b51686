"""Norm layers hand their weight and options to the slot."""

import torch

from hotshoe.layers import (
    AddRMSNorm,
    GatedActivation,
    Linear,
    Matrix,
    OnlineFormat,
    RMSNorm,
    Storage,
)
from hotshoe.slots import (
    SLOTS,
    AddNormSpec,
    Candidate,
    GatedActivationSpec,
    NormSpec,
    QuantSpec,
    Selector,
    accept,
    refuse,
)
from hotshoe.slots.base import resolve_lazy
from hotshoe.slots.reference.linear import quantize_rows

INT8 = QuantSpec("int8", "token", dynamic=True)


ONLINE = OnlineFormat(Storage(QuantSpec("int8", "channel", online=True), INT8))


def candidate(slot, quantizes):
    """Offer the reference as a candidate that quantizes its result, or only does not."""

    def supports(spec, facts):
        return accept(9) if (spec.quant is not None) == quantizes else refuse("the other kind")

    return Candidate(slot, "test", supports, resolve_lazy(SLOTS[slot].reference))


def test_norm(ctx):
    layer = RMSNorm(ctx, "n", 8, 0.5, weight_offset=1.0)
    weight = torch.randn(8)
    ctx.weights.feed("n.weight", weight)
    x = torch.randn(3, 8)
    expected = x * (x.square().mean(-1, keepdim=True) + 0.5).rsqrt() * (1 + weight)
    torch.testing.assert_close(layer(x), expected)
    assert ("rms_norm", NormSpec(8, 0.5, "float32", 1.0)) in ctx.selector.decisions


def test_add_norm(ctx):
    layer = AddRMSNorm(ctx, "n", 8, 0.5, weight_offset=0.0, residual_scale=0.3)
    weight = torch.randn(8)
    ctx.weights.feed("n.weight", weight)
    x, residual = torch.randn(2, 3, 8)
    total = residual + 0.3 * x
    got, new_residual = layer(x, residual)
    torch.testing.assert_close(new_residual, total)
    expected = total * (total.square().mean(-1, keepdim=True) + 0.5).rsqrt() * weight
    torch.testing.assert_close(got, expected)
    assert ("add_rms_norm", AddNormSpec(8, 0.5, "float32", 0.0, 0.3)) in ctx.selector.decisions


def test_the_weight_is_a_copy_in_the_models_type(ctx):
    layer = RMSNorm(ctx, "n", 8, 1e-6)
    weight = torch.randn(8, dtype=torch.float64)
    ctx.weights.feed("n.weight", weight)
    assert layer.weight.dtype == torch.float32
    layer = RMSNorm(ctx, "m", 8, 1e-6)
    mapped = torch.randn(8)
    ctx.weights.feed("m.weight", mapped)
    kept = mapped.clone()
    mapped.zero_()
    assert torch.equal(layer.weight, kept)


def test_a_result_is_quantized_where_a_candidate_does_both(ctx):
    ctx.format = ONLINE
    linear = Linear(ctx, Matrix(ctx, [("l", 8)], 8))
    assert linear.input_quant == INT8
    slots = ("rms_norm", "add_rms_norm", "gated_activation")
    ctx.selector = Selector(SLOTS, [candidate(s, True) for s in slots], ctx.selector.facts)
    norm = RMSNorm(ctx, "n", 8, 1e-6, quant=linear.input_quant)
    add_norm = AddRMSNorm(ctx, "m", 8, 1e-6, quant=linear.input_quant)
    activation = GatedActivation(ctx, 8, "silu", linear.input_quant)
    weight = torch.randn(8, 8)
    ctx.weights.feed("l.weight", weight)
    for name in ("n.weight", "m.weight"):
        ctx.weights.feed(name, torch.randn(8))
    x, residual = torch.randn(2, 3, 16)
    for result, plain in (
        (norm(x[:, :8]), RMSNorm.__call__),
        (add_norm(x[:, :8], residual[:, :8].clone())[0], AddRMSNorm.__call__),
        (activation(x), GatedActivation.__call__),
    ):
        values, scale = result
        assert values.dtype == torch.int8, plain
        exact = (values.double() * scale.double()[:, None]) @ _stored(weight).T
        torch.testing.assert_close(linear(result).double(), exact, rtol=1e-5, atol=1e-5)
    specs = [spec for _, spec in ctx.selector.decisions]
    assert GatedActivationSpec(8, "silu", "float32", INT8) in specs


def _stored(weight):
    values, scale = quantize_rows(weight)
    return values.double() * scale.double()[:, None]


def test_no_result_is_quantized_by_a_reference(ctx):
    ctx.selector = Selector(SLOTS, [candidate("rms_norm", False)], ctx.selector.facts)
    layer = RMSNorm(ctx, "n", 8, 1e-6, quant=INT8)
    ctx.weights.feed("n.weight", torch.randn(8))
    assert isinstance(layer(torch.randn(3, 8)), torch.Tensor)
    assert ("rms_norm", NormSpec(8, 1e-6, "float32")) in ctx.selector.decisions


def test_unquantized_layers_take_plain_inputs(ctx):
    assert Linear(ctx, Matrix(ctx, [("l", 8)], 8)).input_quant is None


def test_without_a_name_there_is_no_weight(ctx):
    layer = RMSNorm(ctx, None, 8, 1e-5)
    assert not ctx.weights.expected
    x = torch.randn(5, 8, dtype=torch.float64)
    wanted = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(layer(x.float()).double(), wanted, rtol=1e-5, atol=1e-6)
