"""Values narrower than keys, in caches with room for more, against core's references."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, CacheView, RotaryAndCacheSpec, StepShape
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference import rotary as plain_rotary
from hotshoe_cpu import attention, padded, rotary

SPEC = AttentionSpec(6, 2, 48, "float32", "float32", 8, 0.2, window=9, sinks=True, v_head_dim=40)
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


def writer_of(spec: AttentionSpec, layout) -> RotaryAndCacheSpec:
    sizes = (spec.num_heads, spec.num_kv_heads, spec.head_dim, 16)
    types = (spec.dtype, spec.kv_dtype, spec.block_size)
    return RotaryAndCacheSpec(*sizes, *types, layout, v_head_dim=spec.v_head_dim)


def run(attend, writers, spec: AttentionSpec, facts: DeviceFacts, qkv: Tensor, sinks: Tensor):
    """Compute 11 tokens of one request and 3 of another; return results and stored values."""
    op = attend(spec, facts)
    write = writers(writer_of(spec, op.layout), facts)
    numel = spec.block_size * spec.num_kv_heads * spec.head_dim
    cache = torch.full((2, 4, numel + op.layout.gap), torch.nan, dtype=qkv.dtype)[..., :numel]
    positions = torch.tensor([*range(11), *range(3)], dtype=torch.int32)
    slots = torch.tensor([*range(16, 27), *range(3)], dtype=torch.int32)
    angles = torch.arange(16)[:, None] * torch.arange(1, 9)[None] / 9.0
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    starts, lengths = (torch.tensor(v, dtype=torch.int32) for v in ([0, 11, 14], [11, 3]))
    view = CacheView(torch.tensor([[2, 3], [0, 1]], dtype=torch.int32), slots)
    prepared = op.prepare(StepShape(2, starts, lengths, 11, 11), view)
    q = write(qkv.clone(), positions, cos_sin, cache, slots, None)
    return op(q, cache, prepared, sinks)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_step_matches_the_reference(facts: DeviceFacts, dtype: str, rng: torch.Generator) -> None:
    spec = replace(SPEC, dtype=dtype, kv_dtype=dtype)
    width = (spec.num_heads + spec.num_kv_heads) * 48 + spec.num_kv_heads * 40
    qkv = torch.randn(14, width, generator=rng).to(getattr(torch, dtype))
    sinks = torch.randn(spec.num_heads, generator=rng)
    assert padded.supports(spec, facts).accepted
    actual = run(padded.Attention, padded.RotaryAndCache, spec, facts, qkv, sinks)
    expected = run(plain.Attention, plain_rotary.RotaryAndCache, spec, facts, qkv, sinks)
    assert actual.shape == expected.shape == (14, 6 * 40) and actual.dtype == qkv.dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_who_takes_which_values(facts: DeviceFacts) -> None:
    even = replace(SPEC, v_head_dim=None)
    assert "v_head_dim 40 differs" in attention.supports(SPEC, facts).reason
    assert "as many channels" in padded.supports(even, facts).reason
    assert "head_dim 60" in padded.supports(replace(SPEC, head_dim=60), facts).reason
    layout = padded.declared_layout(SPEC, facts)
    writer = writer_of(SPEC, layout)
    assert padded.supports_writing(writer, facts).accepted
    assert not rotary.supports(writer, facts).accepted
    even_layout = attention.declared_layout(even, facts)
    assert "no room" in padded.supports_writing(replace(writer, layout=even_layout), facts).reason
