"""Attention over another layer's cache: its queries alone differ, and it asks for no cache."""

import torch

from hotshoe.layers import Attention, ForwardBatch, Rotary, SharedAttention
from hotshoe.layers.attention import QkNorm
from hotshoe.layers.rotary import Rotation
from hotshoe.slots import CacheView, StepShape

HEADS, KV_HEADS, DIM = 4, 2, 8


def step(layer, count, done=0, block=3):
    """Make a batch of one request, which has all its tokens in one block."""
    positions = torch.arange(done, done + count, dtype=torch.int32)
    starts = torch.tensor([0, count], dtype=torch.int32)
    lengths = torch.tensor([done + count], dtype=torch.int32)
    shape = StepShape(1, starts, lengths, count, done + count)
    view = CacheView(torch.tensor([[block]], dtype=torch.int32), positions + block * 4)
    view.prepared = layer.planner[1](shape, view)
    return ForwardBatch(positions, shape, [view])


def test_it_is_attention_with_other_queries_and_no_cache_of_its_own(ctx):
    rotary = Rotary.build(Rotation((1.0, 0.5, 0.2)), 32, "cpu", 2**30)
    spec = ctx.attention_spec(HEADS, KV_HEADS, DIM, 0.3)
    norms = QkNorm(1e-6, ("q", "k"))
    source, plain = (Attention(ctx, spec, rotary, qk_norm=norms) for _ in range(2))
    kept = len(ctx.cache_layers)
    shared = SharedAttention(ctx, source, rotary, "other")
    assert len(ctx.cache_layers) == kept
    weights = {name: torch.randn(DIM) for name in ("q.weight", "k.weight", "other.weight")}
    for layer in (source, plain):
        layer.allocate_cache(6)
        layer.cache.fill_(float("nan"))
    for name, weight in weights.items():
        ctx.weights.feed(name, weight)
    plain._take_norm("q_norm", weights["other.weight"])
    for count, done in ((3, 0), (1, 3)):
        qkv = torch.randn(count, (HEADS + 2 * KV_HEADS) * DIM)
        batch = step(source, count, done)
        source(qkv.clone(), batch)
        before = source.cache.nan_to_num(7.0)
        q = torch.randn(count, HEADS * DIM)
        found = shared(q.clone(), batch)
        assert torch.equal(source.cache.nan_to_num(7.0), before)
        other = torch.cat((q, qkv[:, HEADS * DIM :]), dim=1)
        torch.testing.assert_close(found, plain(other, batch), rtol=1e-5, atol=1e-5)


def test_without_norm_and_rotation_queries_stay_as_they_are(ctx):
    source = Attention(ctx, ctx.attention_spec(HEADS, KV_HEADS, DIM, 0.3), None)
    source.allocate_cache(6)
    shared = SharedAttention(ctx, source, None)
    qkv = torch.randn(2, (HEADS + 2 * KV_HEADS) * DIM)
    batch = step(source, 2)
    wanted = source(qkv.clone(), batch)
    assert torch.equal(shared(qkv[:, : HEADS * DIM].clone(), batch), wanted)


def test_more_or_fewer_queries_go_through_the_same_operation(ctx):
    """As if each kv head had been read by a layer with that many queries."""
    source = Attention(ctx, ctx.attention_spec(HEADS, KV_HEADS, DIM, 0.3), None)
    source.allocate_cache(6)
    qkv = torch.randn(3, (HEADS + 2 * KV_HEADS) * DIM)
    source(qkv.clone(), step(source, 3))
    for heads in (2, 6, 8):
        plain = Attention(ctx, ctx.attention_spec(heads, KV_HEADS, DIM, 0.3), None)
        plain.allocate_cache(6)
        q = torch.randn(3, heads * DIM)
        wanted = plain(torch.cat((q, qkv[:, HEADS * DIM :]), 1), step(plain, 3))
        found = SharedAttention(ctx, source, None)(q, step(source, 3))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
