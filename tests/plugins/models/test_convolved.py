"""Convolutions of q and k, in the parts that a slot and a product of matrices compute."""

import pytest
import torch
from torch.nn import functional

from hotshoe.layers import BuildContext
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector
from hotshoe_models.convolved import HeadProducts, Lagged

CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.fixture
def ctx() -> BuildContext:
    return BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 4, 32)


@pytest.mark.parametrize("taps", [(1, 1), (2, 2), (4, 3), (1, 2)])
def test_copies_and_heads_are_two_convolutions(ctx, taps):
    """Of a text that begins: a convolution of 0 is its bias, which the next one sees."""
    heads, dim, late, count = 3, 4, 5, 9
    size = heads * dim
    lagged = Lagged(ctx, "first", size, late, taps)
    products = HeadProducts(ctx, "second", size, dim, taps[1])
    held = {name: torch.randn(want.shape) for name, want in ctx.weights.expected.items()}
    for name, tensor in held.items():
        for sink in ctx.weights.expected[name].sinks:
            sink(tensor)
    x, behind = torch.randn(count, size), torch.randn(count, late)
    first = functional.pad(x.T.double(), (sum(taps) - 2, 0))
    for name, groups in (("first", size), ("second", heads)):
        weight, bias = (held[f"{name}.{part}"].double() for part in ("weight", "bias"))
        first = functional.conv1d(first, weight, bias, groups=groups)
    # Each row of the operation's weight says what a channel sees of the tokens up to this one.
    width, copies = lagged.spec.conv_width, [x] * taps[1]
    seen = functional.pad(torch.cat((*copies, behind), 1).T, (width - 1, 0)).unfold(1, width, 1)
    rows = lagged.state()
    made = (torch.einsum("ctw,cw->tc", seen, rows["conv"]) + rows["conv_bias"]).float()
    assert torch.equal(made[1:, -late:], behind[:-1]) and not made[0, -late:].any()
    out = products(made[:, :-late].view(count, taps[1], size))
    torch.testing.assert_close(out.double(), first.T, rtol=1e-5, atol=1e-5)
