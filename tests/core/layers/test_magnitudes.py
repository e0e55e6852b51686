"""Magnitudes of adapters: rows of stacked, biased and quantized products are scaled to them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from hotshoe.errors import CheckpointError
from hotshoe.layers import (
    AdapterLimits,
    AdapterTable,
    BuildContext,
    Linear,
    Matrix,
    OnlineFormat,
    Storage,
)
from hotshoe.layers.adapters import Factors
from hotshoe.layers.magnitudes import Gains
from hotshoe.slots import QuantSpec

PARTS = [("k", 4), ("v", 6)]
WIDTH, SCALE = 300, 0.5  # more columns than are multiplied at once
INT8 = QuantSpec("int8", "channel", online=True)


def draw() -> dict[str, torch.Tensor]:
    weights = {f"{name}.weight": torch.randn(size, WIDTH) for name, size in PARTS}
    return weights | {f"{name}.bias": 3 * torch.randn(size) for name, size in PARTS}


def adapted(ctx: BuildContext, bias: bool = True) -> tuple[BuildContext, Linear]:
    own = replace(ctx, adapters=AdapterTable(AdapterLimits(2, 8)), cache_layers=[], weight_bytes=[])
    return own, Linear(own, Matrix(own, PARTS, WIDTH, bias=bias))


def feed(ctx: BuildContext, weights: dict[str, torch.Tensor]) -> None:
    for name in ctx.weights.expected:
        ctx.weights.feed(name, weights[name])


def wanted(x, weights, factors) -> torch.Tensor:
    """Compute with an adapter merged into the weights."""
    found = []
    for name, _ in PARTS:
        w = weights[f"{name}.weight"]
        if name in factors:
            a, b, magnitude, scale, *_ = factors[name]
            w = w + scale * b @ a
            if magnitude is not None:
                w = w * (magnitude / w.norm(dim=1)).unsqueeze(1)
        found.append(linear(x, w, weights[f"{name}.bias"]))
    return torch.cat(found, 1)


def factors(size: int, scaled: bool = True) -> Factors:
    magnitude = 5 + 20 * torch.rand(size) if scaled else None
    return Factors(torch.randn(3, WIDTH), torch.randn(size, 3), magnitude, SCALE)


def run(ctx: BuildContext, layer: Linear, x: torch.Tensor, names: list[str | None]):
    table = ctx.adapters
    table.begin(names, [1] * len(names), np.arange(len(names)))
    return layer(x)


def test_rows_are_scaled_after_new_weights_too(ctx: BuildContext) -> None:
    own, layer = adapted(ctx)
    feed(own, weights := draw())
    adapters = {
        "both": {"k": factors(4), "v": factors(6)},
        "one": {"k": factors(4, False), "v": factors(6)},
        "plain": {"v": factors(6, False)},
    }
    own.adapters.load("plain", adapters["plain"])
    run(own, layer, torch.randn(1, WIDTH), ["plain"])  # lies on the device before others scale
    assert layer._adapted._gains is None
    for name in ("both", "one"):
        own.adapters.load(name, adapters[name])
    for _ in range(2):
        for names in (["both", None, "plain"], ["one", "both"], ["plain", "one", None]):
            x = torch.randn(len(names), WIDTH)
            y = run(own, layer, x, names)
            for row, name in enumerate(names):
                expected = wanted(x[row : row + 1], weights, adapters.get(name, {}))
                torch.testing.assert_close(y[row : row + 1], expected, rtol=1e-4, atol=1e-3)
        feed(own, weights := draw())
        own.settle()


def test_a_row_of_zeros_gives_zeros(ctx: BuildContext) -> None:
    own, layer = adapted(ctx)
    weights = draw()
    weights["k.weight"][1] = 0
    feed(own, weights)
    given = factors(4)
    given.b[1] = 0
    own.adapters.load("zero", {"k": given})
    y = run(own, layer, torch.randn(1, WIDTH), ["zero"])
    torch.testing.assert_close(y[0, 1], weights["k.bias"][1])


class Source:
    """Weights as a checkpoint that can be opened again."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self._weights = weights
        self.names, self.tensor = lambda: list(weights), weights.__getitem__


def test_rows_are_read_where_the_checkpoint_is_there(
    ctx: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, layer = adapted(ctx)
    feed(own, weights := draw())
    own.weights.reopen = lambda: Source(weights)
    multiplied, multiply = [], Gains._multiply
    monkeypatch.setattr(
        Gains, "_multiply", lambda gains, x: multiplied.append(len(x)) or multiply(gains, x)
    )
    own.adapters.load("both", given := {"k": factors(4), "v": factors(6)})
    assert max(multiplied) == 3  # the rank
    x = torch.randn(5, WIDTH)
    y = run(own, layer, x, ["both"] * 5)
    torch.testing.assert_close(y, wanted(x, weights, given), rtol=1e-4, atol=1e-3)
    own.weights.reopen = lambda: Source({"k.weight": weights["k.weight"]})
    own.settle()
    assert max(multiplied) > 3


def test_weights_alone_may_be_quantized(ctx: BuildContext) -> None:
    ctx.format = OnlineFormat(Storage(INT8))
    own, layer = adapted(ctx)
    feed(own, weights := draw())
    own.adapters.load("both", given := {"k": factors(4), "v": factors(6)})
    x = torch.randn(5, WIDTH)
    y, expected = run(own, layer, x, ["both"] * 5), wanted(x, weights, given)
    # Steps of 1 / 127 of a row's largest number are 0.4 % of its length, and so of y.
    assert (y - expected).norm() < 0.05 * expected.norm()
    ctx.format = OnlineFormat(Storage(INT8, QuantSpec("int8", "tensor")))
    own, layer = adapted(ctx)
    feed(own, weights)
    with pytest.raises(CheckpointError, match=r"magnitude .* of k, whose product .*int8 by tensor"):
        own.adapters.own(given)


@pytest.mark.parametrize(
    ("weight", "x"),
    [
        (INT8, QuantSpec("int8", "token", dynamic=True)),
        (replace(INT8, format="fp8_e4m3"), QuantSpec("fp8_e4m3", "token", dynamic=True)),
    ],
    ids=str,
)
@pytest.mark.parametrize("bias", [False, True])
def test_rows_are_measured_exactly_where_x_is_quantized(
    ctx: BuildContext, weight: QuantSpec, x: QuantSpec, bias: bool
) -> None:
    """The product's own W is what unit vectors make; its sum with the adapter has the lengths."""
    ctx.format = OnlineFormat(Storage(weight, x))
    own, _ = adapted(ctx, bias)
    feed(own, weights := draw())
    own.adapters.load("both", given := {"k": factors(4), "v": factors(6)})
    layer, _ = own.adapters.layers["k"]
    base = layer._base.op
    offset = base(torch.zeros(1, WIDTH)).double()
    w = (base(256 * torch.eye(WIDTH)).double() - offset).T / 256
    plain = torch.cat([weights["k.weight"], weights["v.weight"]]).double()
    assert (w - plain).norm() < 0.05 * plain.norm()
    for first, (name, pair) in zip((0, 4), given.items(), strict=True):
        v = w[first : first + len(pair.b)] + SCALE * pair.b.double() @ pair.a.double()
        factor = own.adapters._gains["both"][name].factor
        expected = pair.magnitude / v.norm(dim=1)
        torch.testing.assert_close(factor.double(), expected, rtol=1e-5, atol=0)
