"""Values narrower than keys, in caches with room for more, against core's references."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, CacheView, RotaryAndCacheSpec, StepShape
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference import rotary as plain_rotary
from hotshoe_triton import attention, padded, rotary

SPEC = AttentionSpec(6, 2, 48, "float32", "float32", 16, 0.2, window=9, sinks=True, v_head_dim=40)
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


def writer_of(spec: AttentionSpec, layout) -> RotaryAndCacheSpec:
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, 16)
    types = (spec.dtype, spec.kv_dtype, spec.block_size)
    return RotaryAndCacheSpec(*sizes, *types, layout, v_head_dim=spec.v_head_dim)


def run(kernels, spec: AttentionSpec, facts: DeviceFacts, qkv: Tensor, sinks: Tensor) -> Tensor:
    """Compute 21 tokens of one request, then its next token beside 3 of another."""
    attend, writers = kernels
    op = attend(spec, facts)
    write = writers(writer_of(spec, op.layout), facts)
    device, numel = qkv.device, spec.block_size * spec.num_kv_heads * spec.head_dim
    cache = torch.full((2, 4, numel + op.layout.gap), torch.nan, dtype=qkv.dtype, device=device)
    cache = cache[..., :numel]
    angles = torch.arange(32)[:, None] * torch.arange(1, 9)[None] / 9.0
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1).to(device)
    outs = []
    for rows, counts, lens in ((slice(0, 21), [21], [21]), (slice(21, 25), [1, 3], [22, 3])):
        starts = [0, *torch.tensor(counts).cumsum(0).tolist()]
        pairs = zip(counts, lens, ([32, 48], [0]), strict=False)
        at = [
            (p, blocks[p // 16] + p % 16) for n, end, blocks in pairs for p in range(end - n, end)
        ]
        positions, slots, starts, lengths = (
            torch.tensor(v, dtype=torch.int32, device=device)
            for v in ([p for p, _ in at], [s for _, s in at], starts, lens)
        )
        table = torch.tensor([[2, 3], [0, 1]], dtype=torch.int32, device=device)[: len(lens)]
        view = CacheView(table, slots)
        prepared = op.prepare(StepShape(len(lens), starts, lengths, max(counts), max(lens)), view)
        q = write(qkv[rows].clone(), positions, cos_sin, cache, slots, None)
        outs.append(op(q, cache, prepared, sinks))
    return torch.cat(outs)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_steps_match_the_reference(facts: DeviceFacts, dtype: str, rng: torch.Generator) -> None:
    spec = replace(SPEC, dtype=dtype, kv_dtype=dtype)
    width = (spec.num_heads + spec.num_kv_heads) * 48 + spec.num_kv_heads * 40
    draw = {"generator": rng, "device": rng.device}
    qkv = torch.randn(25, width, **draw).to(getattr(torch, dtype))
    sinks = torch.randn(spec.num_heads, **draw)
    assert padded.supports(spec, facts).accepted
    actual = run((padded.Attention, padded.RotaryAndCache), spec, facts, qkv, sinks)
    expected = run((plain.Attention, plain_rotary.RotaryAndCache), spec, facts, qkv, sinks)
    assert actual.shape == expected.shape == (25, 6 * 40) and actual.dtype == qkv.dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_who_takes_which_values(facts: DeviceFacts) -> None:
    assert "v_head_dim 40 differs" in attention.supports(SPEC, facts).reason
    assert "as many channels" in padded.supports(replace(SPEC, v_head_dim=None), facts).reason
    assert "head_dim 60" in padded.supports(replace(SPEC, head_dim=60), facts).reason
    writer = writer_of(SPEC, padded.declared_layout(SPEC, facts))
    assert padded.supports_writing(writer, facts).accepted
    assert not rotary.supports(writer, facts).accepted
    other = replace(writer, layout=attention.LAYOUT)
    assert "no room" in padded.supports_writing(other, facts).reason


def test_mimo_v2_is_served(facts: DeviceFacts) -> None:
    """Heads of 192 channels, and values of 128."""
    spec = AttentionSpec(64, 4, 192, "bfloat16", "bfloat16", 16, 0.07, v_head_dim=128)
    assert padded.supports(spec, facts).accepted
