"""The selective scan as a layer: names, shapes and the weights that its operation gets."""

import torch

from hotshoe.layers import BuildContext, SelectiveScan
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, SelectiveScanSpec, Selector

CPU = DeviceFacts("plain", "cpu", "", "", 1 << 30, 1)
SPEC = SelectiveScanSpec(6, 4, 3, 2, "float32", "float32", "float32", 8, norm_eps=1e-5)
SHAPES = {
    "conv1d.weight": (6, 1, 2),
    "x_proj.weight": (11, 6),
    "dt_proj.weight": (6, 3),
    "dt_proj.bias": (6,),
    "A_log": (6, 4),
    "D": (6,),
}
NORMS = {"dt_norm": 3, "b_norm": 4, "c_norm": 4}


def build(**options) -> tuple[SelectiveScan, BuildContext]:
    ctx = BuildContext(Selector(SLOTS, [], CPU), "float32", "float32", 8, 32)
    return SelectiveScan(ctx, SPEC, "m.", **{"conv_bias": False, **options}), ctx


def test_names_and_shapes() -> None:
    _, ctx = build(conv_bias=True, norms=tuple(NORMS))
    found = {name: weight.shape for name, weight in ctx.weights.expected.items()}
    norms = {f"m.{name}.weight": (size,) for name, size in NORMS.items()}
    assert found == {f"m.{n}": s for n, s in SHAPES.items()} | {"m.conv1d.bias": (6,)} | norms


def test_what_the_operation_gets() -> None:
    layer, ctx = build(norms=tuple(NORMS))
    given = {name: torch.randn(weight.shape) for name, weight in ctx.weights.expected.items()}
    for name in sorted(given):
        ctx.weights.feed(name, given[name])
    held = layer.state()
    assert torch.equal(held["conv"], given["m.conv1d.weight"][:, 0])
    torch.testing.assert_close(held["a"], -given["m.A_log"].exp())
    assert torch.equal(held["norm"], torch.cat([given[f"m.{n}.weight"] for n in NORMS]))
    assert "conv_bias" not in held


def test_a_block_keeps_a_state_of_all_channels() -> None:
    layer, _ = build()
    conv, state = layer.cache_spec.parts
    assert (conv.shape, state.shape) == ((1, 6), (1, 6, 4))
