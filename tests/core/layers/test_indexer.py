"""The indexer layer: its cache, what it hands over between pieces, and attention behind it."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import SelectionError
from hotshoe.layers import (
    Asked,
    BuildContext,
    ForwardBatch,
    Indexer,
    LatentAttention,
    LatentNames,
    Rotary,
    Rotation,
    assign_views,
)
from hotshoe.layers.indexer import pack, unpack
from hotshoe.slots import SLOTS, CacheView, IndexerSpec, MlaAttentionSpec, Selector, StepShape
from hotshoe.types.layout import lay_out

HEADS, LATENT, NOPE, ROPE, VALUE = 4, 12, 6, 4, 5
ATTENTION = MlaAttentionSpec(HEADS, LATENT, NOPE, ROPE, VALUE, "float32", "float32", 4, 0.3)
SPEC = IndexerSpec(2, 8, ROPE, 3, "float32", "float32", 4)
ROTARY = Rotary.build(Rotation((1.0, 0.5), interleaved=True), 32, "cpu", 2**30)


def make(ctx):
    """Build an indexer, the attention behind it, and attention that shares its choice."""
    indexer = Indexer(ctx, SPEC, ROTARY)
    layers = [
        LatentAttention(ctx, ATTENTION, ROTARY, LatentNames(f"{n}.up", f"{n}.norm"), 1e-6, indexer)
        for n in ("a", "b")
    ]
    layout = lay_out([layer.cache_spec for layer in ctx.cache_layers], 32, 32)
    plans = assign_views(ctx.cache_layers, layout)
    for layer in ctx.cache_layers:
        layer.allocate_cache(6)
        layer.cache.fill_(torch.nan)
    for name in ("a", "b"):
        ctx.weights.feed(f"{name}.up.weight", torch.randn(HEADS * (NOPE + VALUE), LATENT) * 0.3)
        ctx.weights.feed(f"{name}.norm.weight", torch.rand(LATENT) + 0.5)
    return indexer, layers, plans


def batch_of(plans, count, between=None):
    """One request of so many first tokens, in other blocks for each group."""
    positions = torch.arange(count, dtype=torch.int32)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, count], [count]))
    shape = StepShape(1, starts, lengths, count, count)
    views = []
    for plan in plans:
        blocks = torch.tensor([[4 - plan.group, 1 - plan.group]], dtype=torch.int32)
        slots = blocks[0][positions.long() // 4] * 4 + positions % 4
        view = CacheView(blocks, slots.int())
        view.prepared = plan.prepare(shape, view)
        views.append(view)
    return ForwardBatch(positions, shape, views, between=between)


def inputs(count):
    q, rows = torch.randn(count, HEADS * (NOPE + ROPE)), torch.randn(count, LATENT + ROPE)
    return q, rows, torch.randn(count, 16), torch.randn(count, 8), torch.randn(count, 2)


def run(indexer, layers, batch, given):
    q, rows, own, key, weights = given
    asked = indexer.write(own.clone(), key, weights, batch)
    first = layers[0](q.clone(), rows, batch, asked)
    return first, layers[1](q.clone(), rows, batch)


def test_keys_have_a_cache_and_a_group_of_their_own(ctx):
    indexer, layers, plans = make(ctx)
    assert (indexer.cache_spec.kind, indexer.cache_spec.block_bytes) == ("index", 4 * 8 * 4)
    assert indexer.cache.shape == (6, 4, 8) and len(plans) == 2
    assert layers[0].view == layers[1].view != indexer.view
    remembered = indexer.cache
    indexer.free_cache()
    assert remembered.untyped_storage().nbytes() == 0 and not hasattr(indexer, "cache")


def test_layers_ask_for_sparse_attention(ctx):
    make(ctx)
    asked = [slot for slot, _ in ctx.selector.decisions]
    assert "sparse_mla_attention" in asked and "mla_attention" not in asked
    assert ctx.weights.where("a.up.weight")[0].holder.slot == "sparse_mla_attention"


def test_a_choice_serves_the_layers_behind(ctx):
    indexer, layers, plans = make(ctx)
    given = inputs(7)
    first, second = run(indexer, layers, batch_of(plans, 7), given)
    assert indexer.chosen.shape == (7, 3) and first.isfinite().all() and second.isfinite().all()
    kept = indexer.chosen
    layers[1](given[0].clone(), given[1], batch_of(plans, 7))
    assert indexer.chosen is kept


def test_between_pieces_the_same_comes_out(ctx):
    indexer, layers, plans = make(ctx)
    given, widths = inputs(6), []

    def between(q, attend, width=None):
        widths.append(q.shape[1:].numel())
        return attend(q, batch.views)

    plain = run(indexer, layers, batch_of(plans, 6), given)
    batch = batch_of(plans, 6, between)
    for ours, theirs in zip(run(indexer, layers, batch, given), plain, strict=True):
        assert torch.equal(ours, theirs)
    assert widths == [HEADS * (NOPE + ROPE) + 16 + 2, HEADS * (NOPE + ROPE)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_packed_is_exact(dtype):
    q, own = torch.randn(5, HEADS, 10).to(dtype), torch.randn(5, 2, 8).to(dtype)
    weights = torch.randn(5, 2)
    found, asked = unpack(pack(q, Asked(own, weights)), (HEADS, 10), SPEC)
    assert torch.equal(found, q) and torch.equal(asked.q, own)
    assert torch.equal(asked.weights, weights)


def test_native_alone_is_refused_by_name(ctx):
    selector = Selector(SLOTS, [], ctx.selector.facts, require_native=True)
    with pytest.raises(SelectionError, match="slot indexer that --require-native allows"):
        Indexer(replace(ctx, selector=selector), SPEC, ROTARY)


def test_keys_in_8_bits_are_refused(ctx):
    spec = replace(SPEC, kv_dtype="float8_e4m3fn")
    with pytest.raises(SelectionError, match="use --kv-cache-dtype auto"):
        Indexer(BuildContext(ctx.selector, "float32", "float8_e4m3fn", 4, 32), spec, ROTARY)
