"""Caches of 8 bits: what the writer stores and what attention reads, against core's references."""

from dataclasses import replace

import pytest
import torch

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, RotaryAndCacheSpec
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference.kv import kv_of
from hotshoe.slots.reference.rotary import RotaryAndCache as PlainWriter
from hotshoe_triton import attention, kv, rotary
from hotshoe_triton.attention import LAYOUT, Attention, Tiling

SPEC = AttentionSpec(6, 2, 32, "bfloat16", "int8", 16, 0.2, kv_scales="token")
WRITER = RotaryAndCacheSpec(
    6, 2, 32, 32, "bfloat16", "int8", 16, LAYOUT, qk_norm_eps=1e-6, kv_scales="token"
)
FORMS = [
    ("int8", "token"),
    ("int8", "tensor"),
    ("float8_e4m3fn", "token"),
    ("float8_e4m3fn", "tensor"),
    ("float8_e5m2", "token"),
    ("float8_e5m2", "none"),
]
GIVEN = (0.03, 0.05)
TILINGS = {"decode": Tiling(16, 16, 4, 1, 2, 16), "prefill": Tiling(16, 16, 4, 1)}
STEPS = {
    "decode": [(1, 37), (1, 1), (1, 16)],
    "mixed": [(1, 50), (17, 20), (2, 2)],
}


class Reference(plain.Attention):
    layout = LAYOUT


def empty(spec: AttentionSpec | RotaryAndCacheSpec, blocks: int, device: str) -> torch.Tensor:
    """Return a cache of bytes that are NaN in every type of floats."""
    width = spec.head_dim + 4 * (spec.kv_scales == "token")
    numel = spec.block_size * spec.num_kv_heads * width
    return torch.full((2, blocks, numel), 0xFF, dtype=torch.uint8, device=device)


def step(
    steps: list[tuple[int, int]], size: int, rng: torch.Generator
) -> tuple[AttentionMetadata, torch.Tensor, int]:
    """Return a step, the slots of all tokens of its requests, and the number of blocks."""
    counts = [-(-length // size) for _, length in steps]
    device, blocks = rng.device, sum(counts) + 2
    order = torch.randperm(blocks, generator=rng, device=device).int()
    table = torch.zeros(len(steps), max(counts), dtype=torch.int32, device=device)
    slots, taken = [], 0
    for row, (_, length) in enumerate(steps):
        table[row, : counts[row]] = order[taken : taken + counts[row]]
        taken += counts[row]
        at = torch.arange(length, device=device)
        slots.append(table[row, at // size] * size + at % size)
    starts = torch.tensor([0, *(queries for queries, _ in steps)]).cumsum(0).int().to(device)
    lengths = torch.tensor([length for _, length in steps]).int().to(device)
    longest = max(queries for queries, _ in steps)
    meta = AttentionMetadata(
        len(steps), starts, lengths, table, torch.cat(slots), longest, int(lengths.max())
    )
    return meta, torch.cat(slots), blocks


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    "dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow), "float32"]
)
@pytest.mark.parametrize(("kv_dtype", "scales"), FORMS)
def test_attention_reads_8_bits(
    facts: DeviceFacts, kv_dtype: str, scales: str, dtype: str, steps: str, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype=dtype, kv_dtype=kv_dtype, kv_scales=scales, window=30)
    assert attention.supports(spec, facts).accepted
    meta, slots, blocks = step(STEPS[steps], spec.block_size, rng)
    cache = empty(spec, blocks, facts.device)
    given = torch.tensor(GIVEN, device=facts.device)
    k, v = torch.randn(2, len(slots), 2, 32, generator=rng, device=facts.device)
    v *= 1e-3 if scales != "tensor" else 1.0  # scales that float16 would lose
    kv_of(cache, spec, LAYOUT, given).write(k, v, slots)
    tokens = int(meta.query_start_loc[-1])
    q = torch.randn(tokens, 6, 32, generator=rng, device=facts.device).to(getattr(torch, dtype))
    operation, reference = Attention(spec, facts, **TILINGS), Reference(spec, facts)
    operation.kv_scales = reference.kv_scales = given
    expected = reference(q, cache, meta, None).float()
    actual = operation(q, cache, meta, None).float()
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 1.5e-3}[dtype]
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance * float(v.abs().max())
    )


@pytest.mark.parametrize("changes", [{}, {"rotary_dim": 24}, {"rotary_dim": 0}], ids=str)
@pytest.mark.parametrize(("kv_dtype", "scales"), FORMS)
def test_the_writer_stores_what_the_reference_stores(
    facts: DeviceFacts, kv_dtype: str, scales: str, changes: dict[str, int], rng: torch.Generator
) -> None:
    spec = replace(WRITER, kv_dtype=kv_dtype, kv_scales=scales, **changes)
    assert rotary.supports(spec, facts).accepted
    device, tokens = facts.device, 9
    qkv = torch.randn(tokens, 10 * 32, generator=rng, device=device).bfloat16()
    qkv[0, -32:] = 0.0  # a head of zeros
    qkv[1, -32:-16] = float("nan")
    qkv[2, -64:-32] *= 1e4  # beyond what a fixed scale holds
    angles = torch.rand(50, spec.rotary_dim // 2, generator=rng, device=device) * 6
    table = torch.cat((angles.cos(), angles.sin()), -1) if spec.rotary_dim else None
    positions = torch.randint(0, 50, (tokens,), generator=rng, device=device).int()
    slots = torch.randperm(3 * 16, generator=rng, device=device)[:tokens].int()
    norms = torch.rand(2, 32, generator=rng, device=device).bfloat16().unbind()
    given = torch.tensor(GIVEN, device=device)
    caches = []
    for operation in (rotary.RotaryAndCache(spec, facts), PlainWriter(spec, facts)):
        operation.kv_scales = given
        cache = empty(spec, 3, device)
        operation(qkv.clone(), positions, table, cache, slots, norms)
        caches.append(cache)
    rest = torch.ones(48, dtype=torch.bool)
    rest[slots.long().cpu()] = False
    read = [kv_of(cache, spec, LAYOUT, given).gather(torch.arange(3), 48) for cache in caches]
    step = {"int8": 1 / 127, "float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2}[kv_dtype]
    for ours, theirs in zip(*read, strict=True):
        ours, theirs = ours[~rest], theirs[~rest]
        assert torch.equal(ours.isnan(), theirs.isnan())
        # Rotated channels may be rounded otherwise, and so fall to the neighbor.
        largest = theirs.abs().amax(-1, keepdim=True).nan_to_num().expand(theirs.shape)
        if scales == "tensor" and kv_dtype == "int8":  # its steps do not follow the numbers
            largest = (127 * given).amax().expand(theirs.shape)
        close = (ours - theirs).abs() <= 1.01 * step * largest
        assert (close | theirs.isnan()).all()
        assert ((ours == theirs) | theirs.isnan()).float().mean() > 0.95
    blocks, inside = rest.nonzero()[:, 0] // 16, rest.nonzero()[:, 0] % 16
    numel = 16 * 2 * 32
    numbers = caches[0][..., :numel].view(2, 3, 2, 16, 32)[:, blocks, :, inside]
    assert (numbers == 0xFF).all()  # slots of other tokens


@pytest.mark.parametrize(
    ("arch", "changes", "reason"),
    [
        ("sm_80", {"kv_dtype": "float8_e4m3fn"}, "float8_e4m3fn is not converted on sm_80; use"),
        ("sm_75", {}, "architecture sm_75 is not one of"),
        ("gfx1100", {}, "int8 takes more registers than gfx1100 has; use fp8"),
        ("sm_90", {"kv_scales": "none"}, "int8 needs kv_scales"),
        ("sm_90", {"kv_dtype": "uint8"}, "kv_dtype uint8 differs"),
    ],
)
def test_refusals(facts: DeviceFacts, arch: str, changes: dict[str, str], reason: str) -> None:
    other = replace(facts, arch=arch)
    assert reason in attention.supports(replace(SPEC, **changes), other).reason
    assert reason in rotary.supports(replace(WRITER, **changes), other).reason


def test_plain_caches_have_no_scales(facts: DeviceFacts) -> None:
    spec = replace(SPEC, kv_dtype="bfloat16", kv_scales="none")
    cache = torch.empty(2, 3, 16 * 2 * 32 + 8, dtype=torch.bfloat16)[..., :1024]
    found = kv.planes(cache, spec, None)
    assert found.stride == 1032
    assert [t.data_ptr() for t in found.tensors] == 2 * [cache[0].data_ptr(), cache[1].data_ptr()]
