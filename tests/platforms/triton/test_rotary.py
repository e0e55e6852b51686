"""Rotation and cache write against core's reference: kinds of rotation, norms, partial, padding."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PLAIN_LAYOUT, RotaryAndCacheSpec
from hotshoe.slots.reference.rotary import RotaryAndCache as Plain
from hotshoe_triton import rotary
from hotshoe_triton.attention import LAYOUT

SPEC = RotaryAndCacheSpec(4, 2, 64, 64, "float32", "float32", 16, LAYOUT)
BLOCKS = 5
VARIANTS = [
    {},
    {"interleaved": True},
    {"rotary_dim": 24},
    {"rotary_dim": 0},
    {"rotary_dim": 0, "qk_norm_eps": 1e-6},
    {"qk_norm_eps": 1e-6, "qk_norm_offset": 1.0},
    {"rotary_dim": 32, "qk_norm_eps": 1e-6, "interleaved": True},
    {"head_dim": 80, "rotary_dim": 80, "num_heads": 3, "num_kv_heads": 3},
    {"dtype": "bfloat16", "kv_dtype": "bfloat16", "qk_norm_eps": 1e-6},
]


class Inputs:
    """Inputs of one call; the cache has a stride and holds NaN where nothing is written."""

    def __init__(self, spec: RotaryAndCacheSpec, tokens: int, rng: torch.Generator) -> None:
        kind, device = getattr(torch, spec.dtype), rng.device
        width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        wide = torch.randn(tokens, width + 16, generator=rng, device=device)
        self.qkv = wide.to(kind)[:, :width]
        self.positions = torch.randint(0, 50, (tokens,), generator=rng, device=device).int()
        angles = torch.rand(50, spec.rotary_dim // 2, generator=rng, device=device) * 6
        table = torch.cat([angles.cos(), angles.sin()], -1)
        self.cos_sin = table if spec.rotary_dim else None
        slots = torch.randperm(BLOCKS * spec.block_size, generator=rng, device=device)
        self.slots = slots[:tokens].int()
        self.numel = spec.block_size * spec.num_kv_heads * spec.head_dim
        self.cache = torch.full((2, BLOCKS, self.numel), float("nan"), dtype=kind, device=device)
        self.norms = None
        if spec.qk_norm_eps is not None:
            pair = torch.randn(2, spec.head_dim, generator=rng, device=device).to(kind)
            self.norms = (pair[0], pair[1])

    def call(self, operation: object, cache: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv.new_zeros(len(self.qkv), self.qkv.stride(0))[:, : self.qkv.shape[1]]
        qkv.copy_(self.qkv)
        return operation(qkv, self.positions, self.cos_sin, cache, self.slots, self.norms)


def plain_order(cache: torch.Tensor, spec: RotaryAndCacheSpec) -> torch.Tensor:
    """Return a head-major cache as the plain layout has it."""
    shape = (2, -1, spec.num_kv_heads, spec.block_size, spec.head_dim)
    return cache.reshape(shape).transpose(2, 3).reshape(2, cache.shape[1], -1)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_matches_the_reference(
    facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator
) -> None:
    spec = replace(SPEC, **changes)
    assert rotary.supports(spec, facts).accepted
    inputs = Inputs(spec, 7, rng)
    expected_cache = inputs.cache.clone()
    reference = Plain(replace(spec, layout=PLAIN_LAYOUT), facts)
    expected = inputs.call(reference, expected_cache)
    actual = inputs.call(rotary.RotaryAndCache(spec, facts), inputs.cache)
    tolerance = 1e-5 if spec.dtype == "float32" else 2e-2
    options = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    torch.testing.assert_close(actual, expected, **options)
    torch.testing.assert_close(plain_order(inputs.cache, spec), expected_cache, **options)


def test_blocks_and_rows_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, dtype="bfloat16", kv_dtype="bfloat16")
    inputs = Inputs(spec, 3, rng)
    inputs.slots[:] = torch.tensor([3, 0, 9]) + 2 * spec.block_size
    expected_cache = inputs.cache[:, :3].clone()
    plain = Plain(replace(spec, layout=PLAIN_LAYOUT), facts)
    expected = inputs.call(plain, expected_cache)
    # Keys and values beside each other in the one block that is used, the last of three.
    blocks = far_apart(inputs.cache[:, :3].transpose(0, 1).flatten(1))
    cache = blocks.unflatten(1, (2, -1)).transpose(0, 1)
    operation, qkv = rotary.RotaryAndCache(spec, facts), far_apart(inputs.qkv)
    actual = operation(qkv, inputs.positions, inputs.cos_sin, cache, inputs.slots, None)
    options = {"rtol": 2e-2, "atol": 2e-2, "equal_nan": True}
    torch.testing.assert_close(actual, expected, **options)
    torch.testing.assert_close(plain_order(cache, spec), expected_cache, **options)


def test_negative_slots_write_nothing(facts: DeviceFacts, rng: torch.Generator) -> None:
    inputs = Inputs(SPEC, 4, rng)
    inputs.slots[:] = -1
    q = inputs.call(rotary.RotaryAndCache(SPEC, facts), inputs.cache)
    assert q.isfinite().all()
    assert inputs.cache.isnan().all()


def test_empty_batch(facts: DeviceFacts, rng: torch.Generator) -> None:
    inputs = Inputs(SPEC, 0, rng)
    assert inputs.call(rotary.RotaryAndCache(SPEC, facts), inputs.cache).shape == (0, 4, 64)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layout": PLAIN_LAYOUT}, "layout plain"),
        ({"kv_dtype": "float16"}, "kv_dtype float16 differs"),
        ({"rotary_dim": 63}, "rotary_dim 63"),
        ({"head_dim": 1024}, "head_dim 1024"),
        ({"dtype": "float64", "kv_dtype": "float64"}, "element type float64"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert reason in rotary.supports(replace(SPEC, **changes), facts).reason
