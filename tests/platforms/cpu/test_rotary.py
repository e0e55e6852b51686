"""The rotation's adapter: variants against the reference, and refusals."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PLAIN_LAYOUT, RotaryAndCacheSpec
from hotshoe.slots.reference.kv import PagedKV
from hotshoe.slots.reference.rotary import RotaryAndCache as Plain
from hotshoe_cpu import rotary
from hotshoe_cpu.kv import layout

SPEC = RotaryAndCacheSpec(4, 2, 48, 32, "float32", "float32", 16, layout("float32"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"interleaved": True},
        {"rotary_dim": 0},
        {"qk_norm_eps": 1e-5, "qk_norm_offset": 1.0},
    ],
)
def test_matches_the_reference(
    facts: DeviceFacts, changes: dict[str, object], dtype: str, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype=dtype, kv_dtype=dtype, layout=layout(dtype), **changes)
    kind = getattr(torch, dtype)
    qkv = torch.randn(9, 8 * 48, generator=rng).to(kind)
    positions = torch.randint(0, 50, (9,), generator=rng).int()
    angles = torch.rand(50, spec.rotary_dim // 2, generator=rng)
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1) if spec.rotary_dim else None
    norms = None
    if spec.qk_norm_eps is not None:
        norms = tuple(torch.randn(48, generator=rng).to(kind) for _ in range(2))
    slots = torch.randperm(5 * 16, generator=rng)[:9].int()
    found = []
    for operation in (rotary.RotaryAndCache(spec, facts), Plain(spec, facts)):
        cache = torch.zeros(2, 5, 16 * 2 * 48, dtype=kind)
        q = operation(qkv.clone(), positions, cos_sin, cache, slots, norms)
        k, v = PagedKV(cache, spec.layout, 16, 2, 48).gather(torch.arange(5), 80)
        found.append((q, k, v))
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    for actual, expected in zip(*found, strict=True):
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layout": PLAIN_LAYOUT}, "layout plain is not written here"),
        ({"kv_dtype": "bfloat16"}, "kv_dtype bfloat16 differs"),
        ({"head_dim": 514}, "head_dim 514"),
        ({"block_size": 15}, "block_size 15"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert reason in rotary.supports(replace(SPEC, **changes), facts).reason
