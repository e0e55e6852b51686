"""Latent attention against core's reference: shapes, mixed steps, shares of programs, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import device_facts, far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, MlaAttentionSpec
from hotshoe.slots.reference import mla_attention as plain
from hotshoe_conformance.cases import mla_attention as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import Setup
from hotshoe_conformance.place import Place
from hotshoe_triton import latent
from hotshoe_triton.attention import Tiling
from hotshoe_triton.kernels.latent import join_stretches

SPEC = MlaAttentionSpec(4, 64, 32, 16, 32, "float32", "float32", 16, 48**-0.5)
HALF = {"dtype": "bfloat16", "kv_dtype": "bfloat16"}
SMALL = Tiling(16, 16, 4, 1, 2, 16)
NAN = float("nan")
#: Requests as (queries, length).
STEPS = {
    "decode": [(1, 37), (1, 1), (1, 90), (1, 16)],
    "one": [(1, 70)],
    "prefill": [(23, 23), (5, 40)],
    "chunk": [(9, 33)],
    "mixed": [(1, 50), (17, 20), (1, 3), (2, 2)],
}
VARIANTS = [
    {},
    HALF,
    {"interleaved": True},
    {"num_heads": 7},
    {"num_heads": 20},
    {"num_heads": 128, "latent_dim": 32},
    {"latent_dim": 96, "rope_dim": 8, "v_dim": 48, "nope_dim": 24},
    {"latent_dim": 512, "rope_dim": 64, **HALF},
    {"block_size": 1},
    {"block_size": 64},
    {"rope_dim": 0},
]


class Case:
    """A step over a cache whose unused rows hold NaN."""

    def __init__(
        self, spec: MlaAttentionSpec, steps: list[tuple[int, int]], rng: torch.Generator
    ) -> None:
        self.spec, size, device = spec, spec.block_size, rng.device
        counts = [-(-length // size) for _, length in steps]
        order = torch.randperm(sum(counts) + 3, generator=rng, device=device).int()
        table = torch.zeros(len(steps), max(counts) + 3, dtype=torch.int32, device=device)
        owned, new, positions = [], [], []
        for row, (queries, length) in enumerate(steps):
            table[row, : counts[row]] = order[sum(counts[:row]) :][: counts[row]]
            where = torch.arange(length, device=device)
            owned.append(table[row, where // size] * size + where % size)
            new.append(owned[-1][length - queries :])
            positions.append(where[length - queries :])
        self.cache = self.randn(rng, len(order), size, spec.row.channels)
        unused = torch.ones(len(order) * size, dtype=torch.bool, device=device)
        unused[torch.cat(owned).long()] = False
        self.cache.flatten(0, 1)[unused] = NAN
        self.slots, self.positions = torch.cat(new).int(), torch.cat(positions).int()
        queries = [n for n, _ in steps]
        self.meta = AttentionMetadata(
            len(steps),
            torch.tensor([0, *queries]).cumsum(0).int().to(device),
            torch.tensor([length for _, length in steps]).int().to(device),
            table[:, : max(counts) + 1],
            self.slots,
            max(queries),
            max(length for _, length in steps),
        )
        tokens, head = sum(queries), spec.nope_dim + spec.rope_dim
        self.q = self.randn(rng, tokens, spec.num_heads, head)
        self.latent = self.randn(rng, tokens, spec.latent_dim)
        self.key = self.randn(rng, tokens, spec.rope_dim + 3)[:, 3:]
        turns = 1 + int(self.positions.max())
        angles = 6 * torch.rand(turns, spec.rope_dim // 2, generator=rng, device=device)
        self.cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
        up = self.randn(rng, spec.num_heads, spec.nope_dim + spec.v_dim, spec.latent_dim)
        self.up = up * spec.latent_dim**-0.5

    def randn(self, rng: torch.Generator, *shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=rng, device=rng.device)
        return values.to(getattr(torch, self.spec.dtype))

    def run(self, op: object, cache: torch.Tensor) -> torch.Tensor:
        op.load(self.up)
        inputs = (self.q.clone(), self.latent, self.key, self.positions, self.cos_sin)
        q = op.write(*inputs, cache, self.slots)
        poison = torch.full((self.q.numel() * 40,), NAN, device=q.device)
        del poison  # what the caching allocator is likely to hand out
        return op(q, cache, op.prepare(Shape(self.meta), self.meta))


class Shape:
    """A step's shape, as `prepare` reads it."""

    def __init__(self, meta: AttentionMetadata) -> None:
        for name in AttentionMetadata.__slots__:
            setattr(self, name, getattr(meta, name))


def check(case: Case, facts: DeviceFacts, op: latent.MlaAttention) -> None:
    tolerance = 1e-4 if case.spec.dtype == "float32" else 3e-2
    options = {"rtol": tolerance, "atol": tolerance}
    expected_cache = case.cache.clone()
    expected = case.run(plain.MlaAttention(case.spec, facts), expected_cache)
    actual = case.run(op, case.cache)
    torch.testing.assert_close(case.cache, expected_cache, **options, equal_nan=True)
    torch.testing.assert_close(actual, expected, **options)


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps_match_the_reference(
    facts: DeviceFacts, steps: list[tuple[int, int]], rng: torch.Generator
) -> None:
    op = latent.MlaAttention(SPEC, facts, SMALL, SMALL)
    check(Case(SPEC, steps, rng), facts, op)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants_match_the_reference(
    facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator
) -> None:
    spec = replace(SPEC, **changes)
    assert latent.supports(spec, facts).accepted
    check(Case(spec, STEPS["mixed"], rng), facts, latent.MlaAttention(spec, facts))


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_of_eight_bits(facts: DeviceFacts, dtype: str, kind: str) -> None:
    check_drawn(replace(cases.BASE, dtype=dtype, kv_dtype=kind), facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters_have_a_part_in_both_products(facts: DeviceFacts, dtype: str) -> None:
    check_drawn(replace(cases.BASE, dtype=dtype, kv_dtype=dtype, adapted=True), facts)


def check_drawn(spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
    """Judge a step of random requests against float64."""
    assert latent.supports(spec, facts).accepted
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    batch = Batch(((1, 45), (1, 1), (5, 21), (3, 3), (1, 70)), spare=8, gap=2)
    problem, place = cases.SUITE.problem(Setup(spec, batch), source), Place(facts.device)
    got = problem.call(latent.MlaAttention(spec, facts, SMALL, SMALL), place)
    assert not place.overrun()
    for name, expected in problem.expected().items():
        found = expected.check(got[name].cpu())
        assert not found.message, f"{name}: {found.message}"


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_scales_of_small_rows_stay_in_the_range_of_float16(
    facts: DeviceFacts, kind: str, rng: torch.Generator
) -> None:
    spec = replace(SPEC, dtype="float16", kv_dtype=kind)
    case = Case(replace(SPEC, dtype="float16"), [(64, 64)], rng)
    case.latent = case.latent * 2.0**-8
    found = []
    for op in (plain.MlaAttention(spec, facts), latent.MlaAttention(spec, facts, SMALL, SMALL)):
        width = spec.row.width
        cache = torch.zeros(*case.cache.shape[:2], width, dtype=torch.uint8, device=rng.device)
        found.append(case.run(op, cache).double())
    expected, actual = found
    assert (actual - expected).norm() < 0.01 * expected.norm()


def test_programs_that_share_a_request_leave_the_counters_at_zero(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    op = latent.MlaAttention(SPEC, facts, SMALL, SMALL)
    for _ in range(2):
        check(Case(SPEC, STEPS["one"], rng), facts, op)
    assert not op._counters[0].any()


def test_a_program_takes_equal_groups_of_heads() -> None:
    divided = {128: 64, 64: 64, 16: 16, 80: 40, 67: 1, 7: 7}
    assert {n: latent.heads_of_program(n, 64) for n in divided} == divided


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, **HALF)
    case = Case(spec, [(2, 40)], rng)
    op, far = latent.MlaAttention(spec, facts), far_apart(case.cache)
    expected = case.run(plain.MlaAttention(spec, facts), case.cache.clone())
    torch.testing.assert_close(case.run(op, far), expected, rtol=3e-2, atol=3e-2)


def test_no_tokens_are_no_launch(facts: DeviceFacts, rng: torch.Generator) -> None:
    case = Case(SPEC, STEPS["one"], rng)
    op = latent.MlaAttention(SPEC, facts)
    op.load(case.up)
    nothing = replace(case.meta, num_reqs=0)
    assert op(case.q[:0], case.cache, nothing).shape == (0, SPEC.num_heads * SPEC.v_dim)


def test_a_matrix_is_replaced_where_it_lies(facts: DeviceFacts, rng: torch.Generator) -> None:
    case, op = Case(SPEC, STEPS["one"], rng), latent.MlaAttention(SPEC, facts)
    assert op.state() == {}
    op.load(torch.zeros_like(case.up))
    held = op.state()["weight"]
    op.load(case.up)
    torch.testing.assert_close(held, case.up.flatten(0, 1))
    assert op.nbytes() == case.up.nbytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "bfloat16"}, "differs from dtype"),
        ({"kv_dtype": "int8", "latent_dim": 24}, "multiples of 16 bytes, not 24 and 64"),
        ({"latent_dim": 520}, "latent_dim 520 is above 512"),
        ({"rope_dim": 15}, "rope_dim 15 is odd"),
        ({"block_size": 48}, "block_size 48 is not a power of two"),
        ({"scale": 0.0}, "scale 0.0 is not positive"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = latent.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason


@pytest.mark.parametrize(
    ("lengths", "programs"), [([100, 1, 0, 700, 33], 4), ([64, 64], 8), ([5000], 7)]
)
def test_pieces_of_stretches_join(
    facts: DeviceFacts, lengths: list[int], programs: int, rng: torch.Generator
) -> None:
    heads, channels, rows = 8, 32, 32

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device=rng.device)

    tiles = [max(1, -(-length // rows)) for length in lengths]
    out, partial = randn(len(tiles), heads, channels), randn(2 * programs, heads, channels)
    stats = randn(2 * programs, heads, 2).abs() + 0.5
    size = -(-sum(tiles) // programs)
    expected, begin, cut = out.clone(), 0, 0
    for request, count in enumerate(tiles):
        first, last = begin // size, (begin + count - 1) // size
        begin += count
        if first < last:
            cut += 1
            pieces = [2 * p + (p == first) for p in range(first, last + 1)]
            tops, sums = stats[pieces].unbind(-1)
            factors = torch.exp2(tops - tops.amax(0))
            mixed = (partial[pieces] * factors[..., None]).sum(0)
            expected[request] = mixed / (sums * factors).sum(0)[:, None]
    assert cut
    join_stretches[(len(tiles), heads // 4)](
        out,
        partial,
        stats,
        torch.tensor(lengths, dtype=torch.int32, device=rng.device),
        len(tiles),
        PROGRAMS=programs,
        NUM_HEADS=heads,
        GROUP=4,
        LATENT=channels,
        ROWS=rows,
        MIN_TILES=1,
        BLOCK_G=4,
        BLOCK_L=channels,
        BLOCK_P=2,
        BLOCK_R=64,
        CHAINED=False,
    )
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
