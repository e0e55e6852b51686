"""The gated-delta layer: its weights, its memory, and its part on each of several ranks."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import feed, run

from hotshoe.errors import ConfigError
from hotshoe.layers import DeltaNames, GatedDelta, delta_rows
from hotshoe.slots import GatedDeltaSpec

SPEC = GatedDeltaSpec(4, 2, 3, 5, 3, "float32", "bfloat16", "float32", 4, 1e-5)
SHAPES = {
    "m.conv1d.weight": (32, 1, 3),
    "m.A_log": (4,),
    "m.dt_bias": (4,),
    "m.norm.weight": (5,),
}
PLAIN = DeltaNames()
APART = DeltaNames(("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight"), "A", (2, 1))


def make(ctx, spec=SPEC, names=PLAIN):
    layer = GatedDelta(ctx, spec, "m.", names)
    layer.allocate_cache(5)
    return layer


def drawn(shapes=SHAPES):
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_weights_are_named_as_in_checkpoints(ctx):
    layer = make(ctx)
    assert {n: w.shape for n, w in ctx.weights.expected.items()} == SHAPES
    weights = drawn()
    feed(ctx, weights)
    torch.testing.assert_close(layer.state()["a"], -torch.exp(weights["m.A_log"]))
    assert layer.state()["conv"].shape == (32, 3)


def test_a_block_holds_inputs_and_state(ctx):
    layer = make(ctx)
    conv, state = layer.cache
    assert (conv.shape, conv.dtype) == ((5, 2, 32), torch.bfloat16)
    assert (state.shape, state.dtype) == ((5, 4, 5, 3), torch.float32)
    assert (layer.cache_spec.kind, layer.cache_spec.checkpoints) == ("state", "none")


def test_convolutions_of_q_k_and_v_may_lie_apart(ctx):
    weights = drawn()
    whole = make(ctx)
    feed(ctx, weights)
    other = replace(ctx, weights=type(ctx.weights)(), cache_layers=[])
    layer = make(other, names=APART)
    parts = weights["m.conv1d.weight"].split([6, 6, 20])
    given = {f"m.{name}": part for name, part in zip(APART.conv, parts, strict=True)}
    given |= {"m.A": weights["m.A_log"].view(1, 1, 4, 1), **weights}
    assert other.weights.expected["m.A"].shape == (1, 1, 4, 1)
    feed(other, given)
    projected = torch.randn(4, sum(SPEC.sections))
    assert torch.equal(run(layer, projected), run(whole, projected))


def test_new_weights_are_written_in_place(ctx):
    layer = make(ctx)
    feed(ctx, drawn())
    held, projected = dict(layer.state()), torch.randn(4, sum(SPEC.sections))
    before = run(layer, projected)
    feed(ctx, drawn())
    assert all(held[name] is tensor for name, tensor in layer.state().items())
    assert not torch.allclose(run(layer, projected), before)


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_ranks_compute_their_own_heads(ctx, decay):
    spec = replace(SPEC, decay=decay)
    weights = drawn({**SHAPES, "m.dt_bias": (spec.num_decays,)})
    whole = make(ctx, spec)
    feed(ctx, weights)
    projected = torch.randn(7, sum(spec.sections))
    expected = run(whole, projected)
    for rank in (0, 1):
        own = replace(ctx, rank=rank, size=2, weights=type(ctx.weights)(), cache_layers=[])
        layer = make(own, spec)
        feed(own, weights)
        assert (layer.spec.num_heads, layer.spec.num_key_heads) == (2, 1)
        rows = delta_rows(own, spec, list(spec.widths))
        parts = [projected[:, s] for s in rows.within(0, projected.shape[1])]
        [columns] = delta_rows(own, spec, "v").within(0, spec.inner_size)
        torch.testing.assert_close(run(layer, torch.cat(parts, 1)), expected[:, columns])


def test_key_heads_that_do_not_come_out_even_are_refused(ctx):
    with pytest.raises(ConfigError, match="2 key heads; use 1 or 2"):
        make(replace(ctx, rank=0, size=4))
