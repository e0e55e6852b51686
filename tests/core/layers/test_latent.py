"""The latent attention layer: its cache, its matrix under formats and ranks, and what it asks."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import CheckpointError, ConfigError, SelectionError
from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    LatentAttention,
    LatentNames,
    OnlineFormat,
    Rotary,
    Rotation,
    Storage,
    TensorSpec,
    WeightFormat,
    allocate_caches,
    assign_views,
)
from hotshoe.slots import SLOTS, CacheView, MlaAttentionSpec, QuantSpec, Selector, StepShape
from hotshoe.types.layout import lay_out

HEADS, LATENT, NOPE, ROPE, VALUE = 4, 12, 6, 4, 5
SPEC = MlaAttentionSpec(HEADS, LATENT, NOPE, ROPE, VALUE, "float32", "float32", 4, 0.3)
ROTARY = Rotary.build(Rotation((1.0, 0.5), interleaved=True), 32, "cpu", 2**30)


def make(ctx, blocks=6, window=None, **fields):
    spec = replace(SPEC, kv_dtype=ctx.kv_dtype, **fields)
    layer = LatentAttention(ctx, spec, ROTARY, LatentNames("kv_b", "kv_norm"), 1e-6, window)
    layer.allocate_cache(blocks)
    layer.cache.fill_(torch.nan)
    return layer


def feed(ctx, up, norm, own=None):
    ctx.weights.feed("kv_b.weight", up)
    ctx.weights.feed("kv_norm.weight", norm)
    if own is not None:
        ctx.weights.feed("own.weight", own)
    ctx.weights.check_complete()


def batch_of(kept, count, block=3, between=None):
    """One request of up to a block's length, over the cache of a layer."""
    positions = torch.arange(count, dtype=torch.int32)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, count], [count]))
    shape = StepShape(1, starts, lengths, count, count)
    view = CacheView(torch.tensor([[block]], dtype=torch.int32), positions + block * 4)
    view.prepared = kept.planner[1](shape, view)
    return ForwardBatch(positions, shape, [view], between=between)


def run(layer, q, rows, block=3, between=None):
    return layer(q.clone(), rows, batch_of(layer, len(q), block, between))


def weights():
    return torch.randn(HEADS * (NOPE + VALUE), LATENT) * 0.3, torch.rand(LATENT) + 0.5


def inputs(count=4):
    return torch.randn(count, HEADS * (NOPE + ROPE)), torch.randn(count, LATENT + ROPE)


def test_one_token_sees_its_own_values(ctx):
    layer, (up, norm), (q, rows) = make(ctx), weights(), inputs(1)
    feed(ctx, up, norm)
    latent = rows[0, :LATENT]
    latent = latent * (latent.square().mean() + 1e-6).rsqrt() * norm
    values = up.view(HEADS, NOPE + VALUE, LATENT)[:, NOPE:] @ latent
    torch.testing.assert_close(run(layer, q, rows)[0], values.flatten())
    torch.testing.assert_close(layer.cache[3, 0, :LATENT], latent)
    torch.testing.assert_close(layer.cache[3, 0, LATENT:], rows[0, LATENT:])  # position 0
    assert layer.cache[:3].isnan().all() and layer.cache[4:].isnan().all()


def test_a_window_hides_what_is_before_it(ctx):
    layer, given, (q, rows) = make(ctx, window=2), weights(), inputs()
    feed(ctx, *given)
    assert (layer.cache_spec.kind, layer.cache_spec.window) == ("window", 2)
    out = run(layer, q, rows)
    rows[0] = 1e4  # which the last two tokens do not see
    torch.testing.assert_close(run(layer, q, rows)[2:], out[2:], rtol=0, atol=0)
    assert not torch.equal(run(layer, q, rows)[1], out[1])


def test_it_asks_for_the_rotations_pairs(ctx):
    layer = make(ctx)
    assert [spec for slot, spec in ctx.selector.decisions if slot == "mla_attention"] == [
        replace(SPEC, interleaved=True)
    ]
    assert layer.planner[0] == layer.spec and ctx.cache_layers == [layer]


@pytest.mark.parametrize(("kv_dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_token_takes_one_row(ctx, kv_dtype, size):
    ctx = BuildContext(ctx.selector, "float32", kv_dtype, 4, 32)
    layer = make(ctx)
    spec = layer.cache_spec
    assert spec.kind == "latent" and spec.block_tokens == 4
    assert spec.block_bytes == 4 * (LATENT + ROPE) * size
    assert layer.cache.nbytes == 6 * spec.block_bytes


def test_layers_share_a_group_and_a_pool(ctx):
    layers = [make(ctx), make(ctx)]
    layout = lay_out([layer.cache_spec for layer in layers], 32, 32)
    assert [group.layers for group in layout.groups] == [(0, 1)]
    allocate_caches(layers, layout, [5])
    assert layers[0].cache.shape == (6, 4, LATENT + ROPE)
    assert not layers[1].cache[-1].any()
    assert len(assign_views(layers, layout)) == 1
    remembered = layers[0].cache
    layers[1].share_cache(layers[0])
    assert layers[1].cache is remembered
    layers[0].free_cache()
    assert remembered.untyped_storage().nbytes() == 0 and not hasattr(layers[0], "cache")


@pytest.mark.parametrize("window", [None, 2])
def test_a_layer_may_read_anothers_rows(ctx, window):
    """By a matrix of its own, as if it had written equal rows itself."""
    source = make(ctx, window=window)
    spec = source.spec
    reader = LatentAttention(ctx, spec, ROTARY, LatentNames("own", source), 1e-6, window)
    plain = LatentAttention(ctx, spec, ROTARY, LatentNames("own", "kv_norm"), 1e-6, window)
    assert ctx.cache_layers == [source, plain]
    plain.allocate_cache(6)
    own, _ = weights()
    feed(ctx, *weights(), own)
    q, rows = inputs()
    wanted = run(plain, q, rows)
    run(source, inputs()[0], rows)
    before = source.cache.nan_to_num(7.0)
    asked = []

    def between(q, attend, width=None):
        asked.append(width)
        return attend(q, batch_of(source, len(q)).views)

    for handed in (None, between):
        found = reader(q.clone(), None, batch_of(source, len(q), between=handed))
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(source.cache.nan_to_num(7.0), before)
    assert asked == [HEADS * VALUE]


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_have_their_heads(ctx, size):
    (up, norm), (q, rows) = weights(), inputs()
    whole = make(ctx)
    feed(ctx, up, norm)
    expected = run(whole, q, rows).view(4, size, -1)
    for rank in range(size):
        part = BuildContext(ctx.selector, "float32", "float32", 4, 32, rank=rank, size=size)
        layer = make(part)
        feed(part, up, norm)
        own = q.view(4, size, -1)[:, rank]
        torch.testing.assert_close(run(layer, own, rows), expected[:, rank])
        assert layer.cache_spec == whole.cache_spec and layer.spec.num_heads == HEADS // size


def test_heads_that_do_not_divide(ctx):
    ctx = BuildContext(ctx.selector, "float32", "float32", 4, 32, rank=0, size=3)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size 3.*4 attention heads"):
        make(ctx)


def test_between_pieces_the_result_has_another_width(ctx):
    layer, (q, rows) = make(ctx), inputs()
    feed(ctx, *weights())
    plain, asked = run(layer, q, rows), []

    def between(q, attend, width=None):
        asked.append((tuple(q.shape), width))
        return torch.zeros(len(q), width)

    assert not run(layer, q, rows, between=between).any()
    assert asked == [((4, HEADS, NOPE + ROPE), HEADS * VALUE)] and plain.shape == (4, HEADS * VALUE)


class Halves(WeightFormat):
    """A checkpoint of int8 rows with a scale each, half of which is in the scale's name."""

    online = False

    def storage(self, layer, shape):
        return Storage(QuantSpec("int8", "channel"))

    def tensors(self, layer, shape, share):
        pieces = tuple((rows, share.columns) for rows in share.rows)
        weight = TensorSpec(shape, pieces, frozenset({torch.int8}))
        scales = TensorSpec(shape[:1], tuple((rows,) for rows in share.rows))
        return {"weight": weight, "weight_scale": scales}

    def canonical(self, layer, tensors):
        return tensors


def test_a_quantized_matrix_is_read_into_the_models_type(ctx):
    ctx = replace(ctx, format=Halves())
    layer = make(ctx)
    values = torch.randint(-127, 128, (HEADS * (NOPE + VALUE), LATENT), dtype=torch.int8)
    scale = torch.rand(len(values)) * 0.01
    ctx.weights.feed("kv_b.weight_scale", scale)
    ctx.weights.feed("kv_b.weight", values)
    ctx.weights.feed("kv_norm.weight", torch.ones(LATENT))
    [place] = ctx.weights.where("kv_b.weight")
    held = place.holder.state()["weight"]
    assert held.dtype == torch.float32
    torch.testing.assert_close(held, values * scale[:, None])
    q, rows = inputs()
    assert run(layer, q, rows).isfinite().all()


def test_loading_does_not_quantize_it(ctx):
    online = Storage(QuantSpec("int8", "channel", online=True), QuantSpec("int8", "token"))
    ctx = replace(ctx, format=OnlineFormat(online))
    make(ctx)
    up, norm = weights()
    feed(ctx, up, norm)
    assert torch.equal(ctx.weights.where("kv_b.weight")[0].holder.state()["weight"], up)


def test_new_values_are_written_in_place(ctx):
    make(ctx)
    feed(ctx, *weights())
    held = ctx.weights.where("kv_b.weight")[0].holder.state()["weight"]
    up, norm = weights()
    ctx.weights.check_update(["kv_b.weight"])
    feed(ctx, up, norm)
    assert torch.equal(held, up)


def test_a_matrix_of_another_rank_is_named(ctx):
    make(ctx)
    with pytest.raises(CheckpointError, match=r"kv_b.weight has shape \[44, 13\].*\[44, 12\]"):
        ctx.weights.feed("kv_b.weight", torch.zeros(44, LATENT + 1))
    with pytest.raises(CheckpointError, match=r"lacks kv_b\.weight, kv_norm\.weight"):
        ctx.weights.check_complete()


def test_native_alone_is_refused_by_name(ctx):
    selector = Selector(SLOTS, [], ctx.selector.facts, require_native=True)
    with pytest.raises(SelectionError, match="slot mla_attention that --require-native allows"):
        make(replace(ctx, selector=selector))
