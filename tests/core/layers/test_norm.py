"""Norm layers hand their weight and options to the slot."""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import (
    AddRMSNorm,
    DividedRMSNorm,
    GatedActivation,
    LayerNorm,
    Linear,
    Matrix,
    OnlineFormat,
    RMSNorm,
    Split,
    Storage,
    WeightTable,
)
from hotshoe.slots import (
    SLOTS,
    AddNormSpec,
    Candidate,
    GatedActivationSpec,
    LayerNormSpec,
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


@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(ctx, biased):
    layer = LayerNorm(ctx, "n", 8, 0.5, bias=biased)
    given = {part: torch.randn(8) for part in (["weight", "bias"] if biased else ["weight"])}
    for part, tensor in given.items():
        ctx.weights.feed(f"n.{part}", tensor)
    ctx.weights.check_complete()
    x = torch.randn(3, 8)
    expected = torch.nn.functional.layer_norm(x, (8,), given["weight"], given.get("bias"), 0.5)
    torch.testing.assert_close(layer(x), expected)
    assert ("layer_norm", LayerNormSpec(8, 0.5, "float32", biased)) in ctx.selector.decisions
    assert all(torch.equal(layer.state()[part], tensor) for part, tensor in given.items())
    assert layer.state().keys() == given.keys()


def test_an_offset_of_a_layer_norm_is_added_to_the_weight_alone(ctx):
    layer = LayerNorm(ctx, "n", 8, 0.5, weight_offset=1.0)
    weight, bias, x = torch.randn(3, 8).unbind()
    for _ in "12":  # a second time as an update
        ctx.weights.feed("n.weight", weight)
        ctx.weights.feed("n.bias", bias)
    expected = torch.nn.functional.layer_norm(x, (8,), 1 + weight, bias, 0.5)
    torch.testing.assert_close(layer(x[None])[0], expected)


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


class Ranks:
    """Two ranks, one after the other: the second is told what the first has handed over."""

    size = 2

    def __init__(self, others: list[torch.Tensor]) -> None:
        self._others = others

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x + self._others.pop()


def test_rows_that_ranks_share_are_normed_as_one(ctx) -> None:
    x, weight = torch.randn(5, 8), torch.randn(8)
    squares = [x[:, part].square().sum(-1, keepdim=True) for part in (slice(4, 8), slice(0, 4))]
    whole = DividedRMSNorm(ctx, "norm", 8, Split(((0, 8),)), 1e-6)
    ctx.weights.feed("norm.weight", weight)
    expected = torch.nn.functional.rms_norm(x.double(), (8,), weight.double(), 1e-6)
    torch.testing.assert_close(whole(x).double(), expected, rtol=1e-5, atol=1e-6)
    wide = torch.full((5, 20), torch.nan)
    wide[:, 3:11] = x
    torch.testing.assert_close(whole(wide[:, 3:11]), whole(x))
    for rank, part in enumerate((slice(0, 4), slice(4, 8))):
        ranked = replace(ctx, communicator=Ranks([squares[rank]]), weights=WeightTable())
        norm = DividedRMSNorm(ranked, "norm", 8, Split(((part.start, part.stop),)), 1e-6)
        ranked.weights.feed("norm.weight", weight)
        torch.testing.assert_close(
            norm(x[:, part]).double(), expected[:, part], rtol=1e-5, atol=1e-6
        )
        assert norm.state()["weight"].equal(weight[part])


def test_without_a_name_there_is_no_weight(ctx):
    layer = RMSNorm(ctx, None, 8, 1e-5)
    assert not ctx.weights.expected
    x = torch.randn(5, 8, dtype=torch.float64)
    wanted = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    torch.testing.assert_close(layer(x.float()).double(), wanted, rtol=1e-5, atol=1e-6)
