"""Rotation, cache write and attention together against core's references, step by step."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PLAIN_LAYOUT, Alibi, AttentionMetadata, AttentionSpec, RotaryAndCacheSpec
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference import rotary as plain_rotary
from hotshoe_cpu import attention, kv, rotary

SPEC = AttentionSpec(4, 2, 64, "bfloat16", "bfloat16", 32, 0.125)
BLOCKS = 12
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


class Layer:
    """One layer over one implementation's pair of operations and its own cache."""

    def __init__(self, attend: object, prepare: object, spec: AttentionSpec) -> None:
        self.attend, self.prepare = attend, prepare
        tokens, gap = spec.block_size * spec.num_kv_heads, attend.layout.gap
        numel, dtype, poison = tokens * spec.head_dim, getattr(torch, spec.kv_dtype), torch.nan
        if dtype.itemsize == 1:
            numel += 4 * tokens * (spec.kv_scales == "token")
            dtype, poison = torch.uint8, 0xFF
        room = torch.full((2, BLOCKS, numel + gap), poison, dtype=dtype)
        self.cache, self.gaps = room[..., :numel], room[..., numel:]
        if spec.kv_scales == "tensor":
            attend.kv_scales = prepare.kv_scales = torch.tensor([0.02, 0.03])

    def __call__(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        meta: AttentionMetadata,
        sinks: torch.Tensor | None,
        norms: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        q = self.prepare(qkv.clone(), positions, cos_sin, self.cache, meta.slot_mapping, norms)
        assert (self.gaps.isnan() | (self.gaps == 0xFF)).all()
        return self.attend(q, self.cache, meta, sinks)


def build(spec: AttentionSpec, facts: DeviceFacts) -> tuple[Layer, Layer]:
    """Make both layers. Those of 8 bits write alike: 16 bits that differ by a rounding differ by
    more in 8."""
    rotation = RotaryAndCacheSpec(
        spec.num_heads,
        spec.num_kv_heads,
        spec.head_dim,
        spec.head_dim // 2,
        spec.dtype,
        spec.kv_dtype,
        spec.block_size,
        PLAIN_LAYOUT,
        qk_norm_eps=1e-6,
        qk_norm_offset=1.0,
        kv_scales=spec.kv_scales,
    )
    native_rotation = replace(rotation, layout=attention.declared_layout(spec, facts))
    assert attention.supports(spec, facts).accepted
    assert rotary.supports(native_rotation, facts).accepted
    writer = rotary if spec.kv_dtype == spec.dtype else plain_rotary
    native = Layer(
        attention.Attention(spec, facts), writer.RotaryAndCache(native_rotation, facts), spec
    )
    reference = Layer(
        plain.Attention(spec, facts), plain_rotary.RotaryAndCache(rotation, facts), spec
    )
    return native, reference


def metadata(
    spec: AttentionSpec, steps: list[tuple[int, int]]
) -> tuple[AttentionMetadata, torch.Tensor]:
    """Requests as (queries, length); request i owns every len(steps)-th block."""
    size, width = spec.block_size, BLOCKS // len(steps)
    table = torch.arange(width * len(steps)).view(width, -1).T.int().contiguous()
    positions, slots = [], []
    for row, (queries, length) in enumerate(steps):
        for position in range(length - queries, length):
            positions.append(position)
            slots.append(int(table[row, position // size]) * size + position % size)
    starts = torch.tensor([0, *(queries for queries, _ in steps)]).cumsum(0).int()
    lengths = torch.tensor([length for _, length in steps]).int()
    meta = AttentionMetadata(
        len(steps),
        starts,
        lengths,
        table,
        torch.tensor(slots).int(),
        max(q for q, _ in steps),
        int(lengths.max()),
    )
    return meta, torch.tensor(positions).int()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 9},
        {"softcap": 20.0, "sinks": True},
        {"block_size": 8, "num_heads": 6},
        {"alibi": Alibi(12, 4, 4.0, 0.5), "softcap": 20.0},
    ],
)
def test_steps_match_the_reference(
    facts: DeviceFacts, changes: dict[str, object], dtype: str, rng: torch.Generator
) -> None:
    check_steps(replace(SPEC, dtype=dtype, kv_dtype=dtype, **changes), facts, rng)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("kv_dtype", "kv_scales"),
    [
        ("int8", "token"),
        ("int8", "tensor"),
        ("float8_e4m3fn", "token"),
        ("float8_e4m3fn", "tensor"),
        ("float8_e5m2", "none"),
    ],
)
@pytest.mark.parametrize("group", [2, 12])
def test_caches_of_8_bits_match_the_reference(
    facts: DeviceFacts,
    group: int,
    kv_dtype: str,
    kv_scales: str,
    dtype: str,
    rng: torch.Generator,
) -> None:
    """Few heads of a KV head read what is kept as it is, many widen it first."""
    alibi = Alibi(2 * group) if kv_scales != "tensor" else None
    spec = replace(SPEC, dtype=dtype, kv_dtype=kv_dtype, kv_scales=kv_scales, alibi=alibi)
    check_steps(replace(spec, num_heads=2 * group, window=18, softcap=9.0), facts, rng)


def check_steps(spec: AttentionSpec, facts: DeviceFacts, rng: torch.Generator) -> None:
    native, reference = build(spec, facts)
    dtype, kind = spec.dtype, getattr(torch, spec.dtype)
    angles = torch.rand(200, spec.head_dim // 4, generator=rng) * 6
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1)
    sinks = torch.randn(spec.num_heads, generator=rng) if spec.sinks else None
    norms = tuple(torch.randn(spec.head_dim, generator=rng).to(kind) / 8 for _ in range(2))
    width = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    for steps in ([(20, 20), (5, 5)], [(1, 21), (12, 17)], [(1, 22), (1, 18)]):
        meta, positions = metadata(spec, steps)
        qkv = torch.randn(len(positions), width, generator=rng).to(kind)
        actual = native(qkv, positions, cos_sin, meta, sinks, norms)
        expected = reference(qkv, positions, cos_sin, meta, sinks, norms)
        assert actual.dtype == kind
        assert actual.shape == expected.shape
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "float16"}, "kv_dtype float16 differs"),
        ({"kv_dtype": "int8"}, "kv_dtype int8 needs kv_scales"),
        ({"head_dim": 60}, "head_dim 60"),
        ({"head_dim": 520}, "head_dim 520"),
        ({"block_size": 48}, "block_size 48"),
        ({"block_size": 4}, "block_size 4"),
        ({"scale": 0.0}, "scale 0.0"),
        ({"dtype": "float64", "kv_dtype": "float64"}, "element type float64"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert reason in attention.supports(replace(SPEC, **changes), facts).reason


def test_layout_shapes_agree_with_the_slot() -> None:
    for dtype, p in (("float32", 1), ("bfloat16", 2), ("int8", 2)):
        layout = kv.layout(dtype)
        inner = (p,) * (p > 1)
        assert layout.block_shape(layout.k_axes, 32, 2, 64) == (2, 64 // p, 32, *inner)
        assert layout.block_shape(layout.v_axes, 32, 2, 64) == (2, 32 // p, 64, *inner)


def test_blocks_of_a_head_spread_over_the_sets_of_a_cache(facts: DeviceFacts) -> None:
    """Of a cache of 2,048 sets, picked by address, none gets more than twice its share."""
    spec = replace(SPEC, num_kv_heads=8, head_dim=128, block_size=32, dtype="bfloat16")
    spec = replace(spec, kv_dtype="bfloat16")
    stride = (8 * 128 * 32 + attention.declared_layout(spec, facts).gap) * 2
    sets = [0] * 2048
    for block in range(64):
        for line in range(128):
            sets[(block * stride // 64 + line) % 2048] += 1
    assert max(sets) <= 2 * sum(sets) / len(sets)
