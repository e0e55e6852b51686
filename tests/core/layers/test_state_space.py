"""The state-space layer: its weights, its memory, and its part on each of several ranks."""

from dataclasses import replace

import pytest
import torch
from tests.core.layers.conftest import feed, run

from hotshoe.errors import ConfigError
from hotshoe.layers import StateSpace
from hotshoe.slots import StateSpaceSpec
from hotshoe.types.layout import lay_out

SPEC = StateSpaceSpec(
    4, 3, 5, 2, 3, "float32", "bfloat16", "float32", 4, norm="after", norm_eps=1e-5, norm_groups=2
)
SHAPES = {
    "m.conv1d.weight": (32, 1, 3),
    "m.conv1d.bias": (32,),
    "m.A_log": (4,),
    "m.D": (4,),
    "m.dt_bias": (4,),
    "m.norm.weight": (12,),
}


def make(ctx, spec=SPEC, conv_bias=True):
    layer = StateSpace(ctx, spec, "m.", conv_bias)
    layer.allocate_cache(5)
    return layer


def test_weights_are_named_as_in_checkpoints(ctx):
    make(ctx)
    assert {n: w.shape for n, w in ctx.weights.expected.items()} == SHAPES


@pytest.mark.parametrize(
    ("spec", "conv_bias", "left_out"),
    [
        (SPEC, False, {"m.conv1d.bias"}),
        (replace(SPEC, norm="none", norm_groups=1), True, {"m.norm.weight"}),
    ],
)
def test_weights_that_a_model_has_not_are_not_expected(ctx, spec, conv_bias, left_out):
    make(ctx, spec, conv_bias)
    assert set(SHAPES) - set(ctx.weights.expected) == left_out
    feed(ctx, {name: torch.randn(shape) for name, shape in SHAPES.items()})


def test_one_block_holds_both_parts_in_types_of_their_own(ctx):
    layer = make(ctx)
    conv, state = layer.cache
    assert (conv.shape, conv.dtype) == ((5, 2, 32), torch.bfloat16)
    assert (state.shape, state.dtype) == ((5, 4, 3, 5), torch.float32)
    assert layer.cache_spec.block_bytes == 2 * 32 * 2 + 4 * 3 * 5 * 4
    assert (layer.cache_spec.kind, layer.cache_spec.checkpoints) == ("state", "none")


def test_layers_of_equal_states_form_one_group(ctx):
    layers = [make(ctx), make(ctx)]
    layout = lay_out([layer.cache_spec for layer in layers], 32, 8)
    assert [group.layers for group in layout.groups] == [(0, 1)]
    layers[1].share_cache(layers[0])
    assert layers[1].cache is layers[0].cache
    layers[0].free_cache()


def test_new_weights_are_written_in_place(ctx):
    layer = make(ctx)
    projected = torch.randn(4, sum(SPEC.sections))
    for _ in range(2):
        feed(ctx, {name: torch.randn(shape) for name, shape in SHAPES.items()})
        held = dict(layer.state())
        out = run(layer, projected)
    assert all(held[name] is tensor for name, tensor in layer.state().items())
    a_log = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    feed(ctx, a_log)
    torch.testing.assert_close(layer.state()["a"], -torch.exp(a_log["m.A_log"]))
    assert not torch.allclose(run(layer, projected), out)


def test_ranks_compute_their_own_heads(ctx):
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    whole = make(ctx)
    feed(ctx, weights)
    projected = torch.randn(7, sum(SPEC.sections))
    expected = run(whole, projected)
    for rank in (0, 1):
        own = replace(ctx, rank=rank, size=2, weights=type(ctx.weights)(), cache_layers=[])
        layer = make(own)
        feed(own, weights)
        assert (layer.spec.num_heads, layer.spec.num_groups, layer.spec.norm_groups) == (2, 1, 1)
        rows = torch.cat([projected[:, s] for s in layer.inputs.within(0, projected.shape[1])], 1)
        [columns] = layer.outputs.within(0, SPEC.inner_size)
        torch.testing.assert_close(run(layer, rows), expected[:, columns])


@pytest.mark.parametrize("norm", ["before", "after"])
def test_ranks_share_what_is_normed_together(ctx, norm):
    """Four ranks and one group: each computes all of it, and hands its own head on."""
    spec = replace(SPEC, norm=norm, norm_groups=1)
    weights = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    whole = make(ctx, spec)
    feed(ctx, weights)
    projected = torch.randn(7, sum(spec.sections))
    expected = run(whole, projected)
    for rank in range(4):
        own = replace(ctx, rank=rank, size=4, weights=type(ctx.weights)(), cache_layers=[])
        layer = make(own, spec)
        feed(own, weights)
        assert layer.spec == spec and layer.inputs.size == projected.shape[1]
        torch.testing.assert_close(run(layer, projected), expected[:, 3 * rank : 3 * rank + 3])


def test_what_cannot_be_divided_is_named(ctx):
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 3 .*2 state-space heads"):
        make(replace(ctx, size=3))
    with pytest.raises(
        ConfigError, match=r"tensor_parallel_size 3 .*4 state-space heads; use 1, 2 or 4"
    ):
        make(replace(ctx, size=3), replace(SPEC, norm="none", norm_groups=1))
