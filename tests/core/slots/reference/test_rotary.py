"""The rotation reference: against complex multiplication in float64, with norms and the cache."""

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT, RotaryAndCacheSpec
from hotshoe.slots.reference.kv import PagedKV
from hotshoe.slots.reference.rotary import RotaryAndCache

HEADS, KV_HEADS, DIM, BLOCK, TOKENS = 4, 2, 12, 4, 9


def make_table(rotary_dim, positions=50):
    angles = torch.rand(positions, rotary_dim // 2, dtype=torch.float64) * 6
    return torch.cat((angles.cos(), angles.sin()), -1).float(), angles


def turn(x, angles, interleaved):
    """Rotate x [tokens, heads, dim] as complex numbers in float64."""
    half = angles.shape[-1]
    out = x.double().clone()
    part = out[..., : 2 * half]
    a, b = (part[..., 0::2], part[..., 1::2]) if interleaved else part.split(half, dim=-1)
    turned = torch.complex(a, b) * torch.polar(torch.ones_like(angles), angles)[:, None]
    if interleaved:
        out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2] = turned.real, turned.imag
    else:
        out[..., :half], out[..., half : 2 * half] = turned.real, turned.imag
    return out


def normed(x, weight, eps, offset):
    wide = x.double()
    scale = (wide.square().mean(-1, keepdim=True) + eps) ** -0.5
    return wide * scale * (weight.double() + offset)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 8, DIM])
@pytest.mark.parametrize("offset", [None, 0.0, 1.0])
def test_against_float64(interleaved, rotary_dim, offset):
    spec = RotaryAndCacheSpec(
        HEADS,
        KV_HEADS,
        DIM,
        rotary_dim,
        "float32",
        "float32",
        BLOCK,
        PLAIN_LAYOUT,
        interleaved=interleaved,
        qk_norm_eps=None if offset is None else 0.01,
        qk_norm_offset=offset or 0.0,
    )
    table, angles = make_table(rotary_dim) if rotary_dim else (None, None)
    qkv = torch.randn(TOKENS, (HEADS + 2 * KV_HEADS) * DIM)
    q, k, v = qkv.view(TOKENS, -1, DIM).clone().split((HEADS, KV_HEADS, KV_HEADS), 1)
    weights = None if offset is None else (torch.randn(DIM), torch.randn(DIM))
    positions = torch.randint(0, 50, (TOKENS,), dtype=torch.int32)
    slots = torch.randperm(5 * BLOCK)[:TOKENS].int()
    cache = torch.full((2, 5, BLOCK * KV_HEADS * DIM), float("nan"))

    got_q = RotaryAndCache(spec, None)(qkv.clone(), positions, table, cache, slots, weights)

    if weights is not None:
        q, k = (normed(x, w, 0.01, offset) for x, w in zip((q, k), weights, strict=True))
    if table is not None:
        q, k = (turn(x, angles[positions.long()], interleaved) for x in (q, k))
    torch.testing.assert_close(got_q.double(), q.double(), rtol=1e-5, atol=1e-5)
    all_k, all_v = PagedKV(cache, PLAIN_LAYOUT, BLOCK, KV_HEADS, DIM).gather(torch.arange(5), 20)
    got_k, got_v = all_k[slots.long()], all_v[slots.long()]
    torch.testing.assert_close(got_k.double(), k.double(), rtol=1e-5, atol=1e-5)
    assert torch.equal(got_v, v)
    assert cache.isfinite().sum() == 2 * TOKENS * KV_HEADS * DIM


def test_rounds_to_the_models_type():
    spec = RotaryAndCacheSpec(
        HEADS, KV_HEADS, DIM, DIM, "bfloat16", "bfloat16", BLOCK, PLAIN_LAYOUT
    )
    table, _ = make_table(DIM)
    cache = torch.zeros(2, 2, BLOCK * KV_HEADS * DIM, dtype=torch.bfloat16)
    qkv = torch.randn(3, (HEADS + 2 * KV_HEADS) * DIM).bfloat16()
    where = torch.arange(3, dtype=torch.int32)
    assert RotaryAndCache(spec, None)(qkv, where, table, cache, where, None).dtype == torch.bfloat16
