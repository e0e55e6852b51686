"""Layer norms, and RMS norms of rows that ranks share."""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import (
    DividedRMSNorm,
    LayerNorm,
    Split,
    WeightTable,
)
from hotshoe.slots import (
    LayerNormSpec,
    QuantSpec,
)

INT8 = QuantSpec("int8", "token", dynamic=True)


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
