"""The attention layer: what it asks of slots and cache; its writer follows its reader's layout."""

from dataclasses import replace

import pytest
import torch

from hotshoe.errors import CheckpointError
from hotshoe.layers import Attention, BuildContext, ForwardBatch, QkNorm, Rotary
from hotshoe.layers.rotary import Rotation
from hotshoe.runner.states import described
from hotshoe.slots import (
    SLOTS,
    CacheView,
    Candidate,
    KVLayout,
    RotaryAndCacheSpec,
    Selector,
    StepShape,
    accept,
)
from hotshoe.slots.reference.attention import Attention as Reference

HEADS, KV_HEADS, DIM = 4, 2, 8
LAYOUT = KVLayout("pairs", "hDtd", "hTdt", 2, gap=6)


class PairsAttention(Reference):
    """The reference on another layout."""

    layout = LAYOUT


def with_pairs(ctx):
    offered = Candidate("attention", "pairs", lambda spec, facts: accept(5), PairsAttention)
    return replace(ctx, selector=Selector(SLOTS, [offered], ctx.selector.facts))


def make(ctx, poison=float("nan"), **options):
    spec = ctx.attention_spec(HEADS, KV_HEADS, DIM, 0.3)
    rotation = Rotation((1.0, 0.5, 0.2))
    layer = Attention(ctx, spec, Rotary.build(rotation, 32, "cpu", 2**30), **options)
    layer.allocate_cache(6)
    if poison is not None:
        layer.cache.fill_(poison)
    return layer


def run(layer, qkv, block=3):
    """Feed one request of up to a block's length."""
    count = len(qkv)
    positions = torch.arange(count, dtype=torch.int32)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, count], [count]))
    shape = StepShape(1, starts, lengths, count, count)
    view = CacheView(torch.tensor([[block]], dtype=torch.int32), positions + block * 4)
    view.prepared = layer.planner[1](shape, view)
    return layer(qkv.clone(), ForwardBatch(positions, shape, [view]))


def test_any_layout_gives_the_same_result(ctx):
    qkv = torch.randn(4, (HEADS + 2 * KV_HEADS) * DIM)
    plain, pairs = make(ctx), make(with_pairs(ctx))
    torch.testing.assert_close(run(pairs, qkv), run(plain, qkv))
    assert pairs.cache[:, 3].isfinite().all() and pairs.cache[:, :3].isnan().all()
    assert not torch.equal(pairs.cache[:, 3], plain.cache[:, 3])


def test_the_writer_is_asked_for_the_readers_layout(ctx):
    ctx = with_pairs(ctx)
    make(ctx)
    (spec,) = [spec for slot, spec in ctx.selector.decisions if slot == "rotary_and_cache"]
    assert spec == RotaryAndCacheSpec(HEADS, KV_HEADS, DIM, 6, "float32", "float32", 4, LAYOUT)


def test_norms_of_q_and_k(ctx):
    layer = make(ctx, qk_norm=QkNorm(0.1, ("q_norm", "k_norm"), 1.0))
    plain = make(ctx)
    q_weight, k_weight = torch.randn(2, DIM)
    ctx.weights.feed("k_norm.weight", k_weight)
    ctx.weights.feed("q_norm.weight", q_weight)
    qkv = torch.randn(3, HEADS + 2 * KV_HEADS, DIM)
    normed = qkv.clone()
    for part, weight in ((slice(0, HEADS), q_weight), (slice(HEADS, HEADS + KV_HEADS), k_weight)):
        x = qkv[:, part]
        normed[:, part] = x * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt() * (1 + weight)
    torch.testing.assert_close(run(layer, qkv.flatten(1)), run(plain, normed.flatten(1)))


def test_norms_without_weights(ctx):
    layer, plain = make(ctx, qk_norm=QkNorm(0.1, None)), make(ctx)
    qkv = torch.randn(3, HEADS + 2 * KV_HEADS, DIM)
    normed = qkv.clone()
    x = normed[:, : HEADS + KV_HEADS]
    x *= (x.square().mean(-1, keepdim=True) + 0.1).rsqrt()
    torch.testing.assert_close(run(layer, qkv.flatten(1)), run(plain, normed.flatten(1)))


def test_norms_behind_rotation(ctx):
    """The weights of both multiply q behind rotation, in the place of each its own."""
    late = make(ctx, qk_norm=QkNorm(0.1, ("q_norm", "k_norm"), 1.0, late=True))
    unit = make(ctx, qk_norm=QkNorm(0.1, None))
    q_weight, k_weight = torch.randn(2, DIM)
    written, seen = unit._write, []

    def turned(*inputs):
        q = written(*inputs)
        seen.append(q)
        return q.mul_((1 + q_weight) * (1 + k_weight))

    unit._write = turned
    for _ in range(2):  # in place, too
        ctx.weights.feed("q_norm.weight", q_weight)
        ctx.weights.feed("k_norm.weight", k_weight)
    qkv = torch.randn(3, (HEADS + 2 * KV_HEADS) * DIM)
    torch.testing.assert_close(run(late, qkv), run(unit, qkv))
    assert len(seen) == 1
    torch.testing.assert_close(late.cache[:, 3], unit.cache[:, 3], equal_nan=True)


def test_sinks_weaken_what_is_seen(ctx):
    layer = make(ctx, sinks="sinks")
    plain = make(ctx)
    ctx.weights.feed("sinks", torch.tensor([-100.0, 0.0, 100.0, -100.0]))
    qkv = torch.randn(1, (HEADS + 2 * KV_HEADS) * DIM)
    got, without = run(layer, qkv).view(HEADS, DIM), run(plain, qkv).view(HEADS, DIM)
    torch.testing.assert_close(got[[0, 3]], without[[0, 3]])
    assert (got[1].abs() < without[1].abs()).all()
    torch.testing.assert_close(got[2], torch.zeros(DIM))
    assert layer.spec.sinks and not plain.spec.sinks


def test_without_rotation(ctx):
    layer = Attention(ctx, ctx.attention_spec(HEADS, KV_HEADS, DIM, 0.3), None)
    layer.allocate_cache(6)
    qkv = torch.randn(1, (HEADS + 2 * KV_HEADS) * DIM)
    v = qkv[0, -KV_HEADS * DIM :].view(KV_HEADS, DIM).repeat_interleave(HEADS // KV_HEADS, 0)
    torch.testing.assert_close(run(layer, qkv)[0], v.flatten())


@pytest.mark.parametrize(("kv_dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_cache_memory(ctx, kv_dtype, size):
    ctx = BuildContext(ctx.selector, "float32", kv_dtype, 4, 32)
    layer = make(ctx)
    assert layer.cache_spec.block_bytes == 2 * 4 * KV_HEADS * DIM * size
    assert layer.cache.nbytes == 6 * layer.cache_spec.block_bytes
    assert ctx.cache_layers == [layer]
    apart = make(with_pairs(ctx))
    assert apart.cache_spec.block_bytes == 2 * (4 * KV_HEADS * DIM + LAYOUT.gap) * size
    assert apart.cache.stride(0) * size == 6 * apart.cache_spec.block_bytes // 2


@pytest.mark.parametrize(
    ("kv_dtype", "scales", "limit"),
    [("int8", "token", 0.03), ("float8_e4m3fn", "token", 0.1), ("float8_e5m2", "none", 0.2)],
)
def test_8_bits_are_near_and_take_their_bytes(ctx, kv_dtype, scales, limit):
    small, plain = make(replace(ctx, kv_dtype=kv_dtype), None), make(ctx)
    assert small.spec.kv_scales == scales
    assert small.cache_spec.block_bytes == 2 * 4 * KV_HEADS * (DIM + 4 * (scales == "token"))
    assert small.cache.nbytes == 6 * small.cache_spec.block_bytes
    qkv = torch.randn(4, (HEADS + 2 * KV_HEADS) * DIM)
    expected = run(plain, qkv)
    error = (run(small, qkv) - expected).abs().max() / expected.abs().max()
    assert 1e-4 < error < limit


def test_scales_of_the_checkpoint(ctx):
    names = ("self_attn.k_scale", "self_attn.v_scale")
    ctx = replace(ctx, kv_dtype="float8_e4m3fn")
    layer, plain = make(ctx, None, kv_scales=names), make(ctx, None)
    assert layer.spec.kv_scales == "tensor" and plain.spec.kv_scales == "token"
    assert not make(replace(ctx, kv_dtype="float8_e5m2"), None, kv_scales=names).spec.kv_scales[4:]
    qkv = torch.randn(4, (HEADS + 2 * KV_HEADS) * DIM)
    qkv[:, -KV_HEADS * DIM :] *= 1000  # beyond what the type holds without a scale
    assert run(layer, qkv).abs().max() < 448.01
    ctx.weights.feed(names[0], torch.tensor(0.01))
    ctx.weights.feed(names[1], torch.tensor([10.0]))
    assert layer.state()["kv_scales"].tolist() == [pytest.approx(0.01), 10.0]
    assert described("m", [plain, layer]).scales == {1: (pytest.approx(0.01), 10.0)}
    expected = run(plain, qkv)
    assert (run(layer, qkv) - expected).abs().max() < 0.1 * expected.abs().max()
    for bad in (0.0, -1.0, float("nan"), float("inf"), 1e-60):
        with pytest.raises(CheckpointError, match=r"k_scale is .* above 0 is needed; fetch"):
            ctx.weights.feed(names[0], torch.tensor(bad, dtype=torch.float64))


def test_a_cache_is_given_back_though_somebody_remembers_it(ctx):
    layer = make(ctx)
    layer.allocate_cache(5)
    remembered = layer.cache
    layer.free_cache()
    assert remembered.untyped_storage().nbytes() == 0 and not hasattr(layer, "cache")
    layer.allocate_cache(5)
    assert layer.cache.shape == remembered.shape
