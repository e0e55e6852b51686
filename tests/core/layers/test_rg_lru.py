"""The gated linear recurrence as a layer: names, shapes and the weights that its operation gets."""

from dataclasses import replace

import pytest
import torch

from hotshoe.layers import BuildContext, RgLru
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, RgLruSpec, Selector

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = RgLruSpec(12, 3, 4, "float32", "float32", "float32", 8)


@pytest.mark.parametrize("heads", [1, 3])
def test_what_the_operation_gets(heads: int) -> None:
    ctx, size = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 8, 32), 12 // heads
    layer = RgLru(ctx, replace(SPEC, num_heads=heads), "m.")
    given = {name: torch.randn(weight.shape) for name, weight in ctx.weights.expected.items()}
    gates = {kind: f"m.rg_lru.{kind}_gate" for kind in ("input", "recurrent")}
    shapes = {name: tuple(tensor.shape) for name, tensor in given.items()}
    assert shapes == {
        "m.conv_1d.weight": (12, 1, 4),
        "m.conv_1d.bias": (12,),
        "m.rg_lru.recurrent_param": (12,),
        **{f"{gate}_weight": (heads, size, size) for gate in gates.values()},
        **{f"{gate}_bias": (heads, size) for gate in gates.values()},
    }
    for name in sorted(given):
        ctx.weights.feed(name, given[name])
    held = layer.state()
    for number, gate in enumerate(gates.values()):
        columns = slice(number * size, (number + 1) * size)
        assert torch.equal(held["gates"][:, :, columns], given[f"{gate}_weight"])
        assert torch.equal(held["gate_bias"][number], given[f"{gate}_bias"].flatten())
    rate = -8 * torch.nn.functional.softplus(given["m.rg_lru.recurrent_param"])
    torch.testing.assert_close(held["rate"], rate)
    conv, state = layer.cache_spec.parts
    assert (conv.shape, state.shape) == ((3, 12), (1, 12, 1))
