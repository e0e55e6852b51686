"""The short convolution as a layer: names, shapes, and what it keeps."""

import torch

from hotshoe.layers import BuildContext, ShortConv
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Selector, ShortConvSpec

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = ShortConvSpec(6, 3, "float32", "float32", 8)


def build(bias: bool) -> tuple[ShortConv, BuildContext]:
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 8, 32)
    return ShortConv(ctx, SPEC, "m.", bias), ctx


def test_names_shapes_and_what_the_operation_gets() -> None:
    layer, ctx = build(True)
    found = {name: weight.shape for name, weight in ctx.weights.expected.items()}
    assert found == {"m.conv.weight": (6, 1, 3), "m.conv.bias": (6,)}
    given = {name: torch.randn(shape) for name, shape in found.items()}
    for name, tensor in given.items():
        ctx.weights.feed(name, tensor)
    assert torch.equal(layer.state()["conv"], given["m.conv.weight"][:, 0])
    assert set(build(False)[1].weights.expected) == {"m.conv.weight"}


def test_a_block_keeps_inputs_alone() -> None:
    layer, _ = build(False)
    assert [part.shape for part in layer.cache_spec.parts] == [(2, 6)]
    layer.allocate_cache(5)
    assert [tensor.shape for tensor in layer.cache] == [(5, 2, 6)]
