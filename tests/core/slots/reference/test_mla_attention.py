"""The reference of latent attention against keys and values written out in float64, per query."""

import random

import pytest
import torch

from hotshoe.slots import CacheView, MlaAttentionSpec, StepShape
from hotshoe.slots.reference.mla_attention import MlaAttention, absorbed, absorbs, projected

SPEC = MlaAttentionSpec(3, 24, 10, 8, 6, "float32", "float32", 4, 0.31)
#: DeepSeek-V3's heads.
V3 = MlaAttentionSpec(128, 512, 128, 64, 128, "bfloat16", "bfloat16", 32, 192**-0.5)


def turned(x, position, interleaved):
    """Rotate one vector [rope_dim] in float64, pair by pair."""
    out, half = x.double().clone(), len(x) // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        angle = torch.tensor(position * 100.0 ** (-i / half), dtype=torch.float64)
        out[a] = x[a].double() * angle.cos() - x[b].double() * angle.sin()
        out[b] = x[b].double() * angle.cos() + x[a].double() * angle.sin()
    return out


def table(length):
    angles = torch.arange(length)[:, None] * 100.0 ** (-torch.arange(4) / 4)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def oracle(spec, q, position, latents, keys, up):
    """Attend with one query [num_heads, 18] over latents [n, 24] and rotated keys [n, 8]."""
    rows = []
    for head in range(spec.num_heads):
        to_key, to_value = up[head, :10].double(), up[head, 10:].double()
        wide = torch.cat((q[head, :10].double(), turned(q[head, 10:], position, spec.interleaved)))
        scores = [
            wide @ torch.cat((to_key @ latent.double(), key)) * spec.scale
            for latent, key in zip(latents, keys, strict=True)
        ]
        weights = torch.stack(scores).exp()
        rows.append((weights / weights.sum()) @ (latents.double() @ to_value.T))
    return torch.stack(rows)


class Cached:
    """One request whose tokens go into shuffled blocks of a poisoned cache, step by step."""

    def __init__(self, spec, blocks):
        self.op = MlaAttention(spec, type("F", (), {"device": "cpu"}))
        self.up = torch.randn(spec.num_heads, 16, spec.latent_dim) * spec.latent_dim**-0.5
        self.op.load(self.up)
        self.spec, self.blocks, self.length = spec, blocks, 0
        self.cache = torch.full((12, spec.block_size, spec.row.channels), torch.nan)
        self.latents, self.keys = torch.empty(0, spec.latent_dim), torch.empty(0, 8).double()

    def step(self, count):
        """Return what comes out for `count` further tokens, and the oracle's answer."""
        spec, size = self.spec, self.spec.block_size
        at = torch.arange(self.length, self.length + count)
        q, latent, key = torch.randn(count, 3, 18), torch.randn(count, 24), torch.randn(count, 8)
        self.length += count
        ints = lambda *values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
        shape = StepShape(1, ints(0, count), ints(self.length), count, self.length)
        slots = torch.tensor([self.blocks[p // size] * size + p % size for p in at.tolist()])
        view = CacheView(torch.tensor([[*self.blocks, 1 << 20]], dtype=torch.int32), slots.int())
        given = q.clone()
        moved = self.op.write(
            given, latent, key, at.int(), table(64), self.cache, view.slot_mapping
        )
        out = self.op(moved, self.cache, self.op.prepare(shape, view))
        self.latents = torch.cat((self.latents, latent))
        fresh = [turned(k, p, spec.interleaved) for k, p in zip(key, at.tolist(), strict=True)]
        self.keys = torch.cat((self.keys, torch.stack(fresh)))
        want = [
            oracle(spec, q[i], p, self.latents[: p + 1], self.keys[: p + 1], self.up)
            for i, p in enumerate(at.tolist())
        ]
        return out.view(count, 3, 6), torch.stack(want)


@pytest.mark.parametrize("interleaved", [False, True])
def test_prompt_chunk_and_decode_against_float64(interleaved):
    spec = MlaAttentionSpec(3, 24, 10, 8, 6, "float32", "float32", 4, 0.31, interleaved=interleaved)
    cached = Cached(spec, random.sample(range(12), 8))
    for count in (9, 7, 1, 1, 8):
        out, want = cached.step(count)
        assert out.isfinite().all()
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("count", "length"), [(1, 1), (1, 30), (30, 30), (6, 25)])
def test_both_forms_are_one(count, length):
    q, rows = torch.randn(count, 3, 18), torch.randn(length, 32)
    up = torch.randn(3, 16, 24) * 0.2
    one, other = absorbed(SPEC, q, rows, up), projected(SPEC, q, rows, up)
    assert one.shape == (count, 3, 6)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_decoding_absorbs_and_prompts_do_not():
    assert absorbs(V3, 1, 4096) and absorbs(V3, 1, 2) and absorbs(V3, 4, 4096)
    assert not absorbs(V3, 4096, 4096) and not absorbs(V3, 1024, 4096) and not absorbs(V3, 1, 1)


def test_what_is_cached_is_a_row_per_token():
    assert V3.row.channels == 576 and SPEC.row.channels == 32
    assert (V3.up.in_features, V3.up.out_features) == (512, 128 * 256)


def test_a_second_load_stays_in_place():
    cached = Cached(SPEC, [0])
    held = cached.op.state()["weight"]
    assert held.shape == (3 * 16, 24) and cached.op.nbytes() == held.nbytes
    cached.op.load(torch.zeros(3, 16, 24))
    assert not held.any() and cached.op.state()["weight"].data_ptr() == held.data_ptr()
    assert MlaAttention(SPEC, type("F", (), {"device": "cpu"})).state() == {}


def test_rows_in_another_type_are_rounded_once():
    spec = MlaAttentionSpec(3, 24, 10, 8, 6, "float32", "bfloat16", 4, 0.31)
    op = MlaAttention(spec, type("F", (), {"device": "cpu"}))
    cache = torch.zeros(2, 4, 32, dtype=torch.bfloat16)
    latent, key = torch.randn(1, 24), torch.randn(1, 8)
    at = torch.tensor([0], dtype=torch.int32)
    op.write(torch.randn(1, 3, 18), latent, key, at, table(4), cache, at + 5)
    assert torch.equal(cache[1, 1], torch.cat((latent, key), -1)[0].bfloat16())
    assert not cache[0].any() and not cache[1, 0].any()
