"""Decode and prefill attention against core's reference: shapes, windows, caps, sinks, padding."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Alibi, AttentionMetadata, AttentionSpec
from hotshoe.slots.reference import attention as plain
from hotshoe.slots.reference.kv import PagedKV
from hotshoe_triton import attention
from hotshoe_triton.attention import FEW, FEW_REQS, Attention, Tiling, few_tiling
from hotshoe_triton.device import ARCHS

SPEC = AttentionSpec(4, 2, 64, "float32", "float32", 16, 0.125)
SMALL_DECODE, SMALL_PREFILL = Tiling(16, 16, 4, 1, 2, 16), Tiling(16, 16, 4, 1)
NAN = float("nan")
HALF = {"dtype": "bfloat16", "kv_dtype": "bfloat16"}


class Case:
    """Requests as (queries, length) over a cache whose unused slots hold NaN."""

    def __init__(
        self,
        spec: AttentionSpec,
        steps: list[tuple[int, int]],
        rng: torch.Generator,
        block_stride: int = 0,
    ) -> None:
        self.spec = spec
        dtype = getattr(torch, spec.dtype)
        device = rng.device
        size = spec.block_size
        counts = [-(-length // size) for _, length in steps]
        blocks = sum(counts) + 3
        order = torch.randperm(blocks, generator=rng, device=device).int()
        width = max([*counts, 1]) + 1
        self.table = torch.zeros(len(steps), width + 2, dtype=torch.int32, device=device)[:, :width]
        numel = size * spec.num_kv_heads * spec.head_dim
        stride = max(numel, block_stride)
        storage = torch.full((2 * blocks * stride,), NAN, dtype=dtype, device=device)
        self.cache = storage.view(2, blocks, stride)[:, :, :numel]
        self.plain = torch.zeros(2, blocks, numel, dtype=dtype, device=device)
        self.shape = (spec.num_kv_heads, spec.head_dim)
        taken = 0
        slots = []
        for row, (queries, length) in enumerate(steps):
            self.table[row, : counts[row]] = order[taken : taken + counts[row]]
            taken += counts[row]
            where = torch.arange(length, device=device)
            slot = self.table[row, where // size] * size + where % size
            slots.append(slot[length - queries :])
            self._fill(slot, rng)
        starts = torch.tensor([0, *(queries for queries, _ in steps)]).cumsum(0)
        lengths = [length for _, length in steps]
        self.meta = AttentionMetadata(
            len(steps),
            starts.int().to(device),
            torch.tensor(lengths).int().to(device),
            self.table,
            torch.cat(slots).int(),
            max(queries for queries, _ in steps),
            max(lengths),
            settled=True,
        )
        tokens = int(starts[-1])
        wide = torch.randn(
            tokens, (spec.num_heads + 3) * spec.head_dim, generator=rng, device=device
        ).to(dtype)
        heads = wide[:, : spec.num_heads * spec.head_dim]
        self.q = heads.unflatten(1, (spec.num_heads, spec.head_dim))
        self.sinks = None
        if spec.sinks:
            self.sinks = torch.randn(spec.num_heads, generator=rng, device=device)

    def _fill(self, slots: torch.Tensor, rng: torch.Generator) -> None:
        k, v = torch.randn(2, len(slots), *self.shape, generator=rng, device=rng.device)
        sizes = (self.spec.block_size, *self.shape)
        for cache, layout in (
            (self.cache, attention.LAYOUT),
            (self.plain, plain.Attention.layout),
        ):
            # A strided cache cannot be viewed; fill a contiguous copy and put it back.
            filled = cache.contiguous()
            PagedKV(filled, layout, *sizes).write(k, v, slots)
            cache.copy_(filled)

    def expected(self) -> torch.Tensor:
        facts = DeviceFacts("", "", "", "", 0, 0)
        return plain.Attention(self.spec, facts)(self.q, self.plain, self.meta, self.sinks)


def compute(case: Case, facts: DeviceFacts, **options: object) -> torch.Tensor:
    spec = case.spec
    options = {"decode": SMALL_DECODE, "prefill": SMALL_PREFILL} | options
    operation = Attention(spec, facts, **options)
    poison = torch.full_like(case.q, NAN)  # what the caching allocator is likely to hand out
    del poison
    return operation(case.q, case.cache, case.meta, case.sinks)


VARIANTS = [
    {},
    {"window": 9},
    {"softcap": 2.0},
    {"sinks": True},
    {"window": 21, "sinks": True, "softcap": 5.0},
    {"num_heads": 7, "num_kv_heads": 1, "head_dim": 80},
    {"num_heads": 6, "num_kv_heads": 6, "alibi": Alibi(12, 6, 4.0, 0.5), "window": 21},
    {"num_heads": 6, "num_kv_heads": 2, "block_size": 32},
]
STEPS = {
    "decode": [(1, 37), (1, 1), (1, 90), (1, 16)],
    "one": [(1, 70)],
    "prefill": [(23, 23), (5, 40)],
    "chunk": [(9, 33)],
    "mixed": [(1, 50), (17, 20), (1, 3), (2, 2)],
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_agrees_with_the_reference(
    facts: DeviceFacts, changes: dict[str, object], steps: str, rng: torch.Generator
) -> None:
    case = Case(replace(SPEC, **changes), STEPS[steps], rng)
    torch.testing.assert_close(compute(case, facts), case.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("steps", ["decode", "prefill"])
def test_half_precision(facts: DeviceFacts, dtype: str, steps: str, rng: torch.Generator) -> None:
    case = Case(replace(SPEC, dtype=dtype, kv_dtype=dtype), STEPS[steps], rng)
    actual = compute(case, facts)
    assert actual.dtype == getattr(torch, dtype)
    torch.testing.assert_close(actual, case.expected(), rtol=2e-2, atol=2e-2)


def test_shipped_tilings(facts: DeviceFacts, rng: torch.Generator) -> None:
    for steps in ("decode", "mixed"):
        case = Case(replace(SPEC, window=40), STEPS[steps], rng)
        options = {"decode": None, "prefill": None}
        actual = compute(case, facts, **options)
        torch.testing.assert_close(actual, case.expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reqs", [1, FEW_REQS, FEW_REQS + 1])
def test_steps_of_few_requests_have_a_tiling_of_their_own(
    facts: DeviceFacts, reqs: int, rng: torch.Generator
) -> None:
    spec = replace(SPEC, **HALF)
    case = Case(spec, [(1, 190), (1, 70), (1, 1), (1, 64), (1, 65)][:reqs], rng)
    actual = compute(case, facts, decode=None)
    torch.testing.assert_close(actual, case.expected(), rtol=2e-2, atol=2e-2)


def test_which_tiling_few_requests_have() -> None:
    spec = replace(SPEC, **HALF)
    hopper = ARCHS["sm_90"]
    assert few_tiling(spec, hopper) == FEW["hopper"]
    for other in ({"dtype": "float32"}, {"kv_dtype": "int8"}, {"head_dim": 80}, {"head_dim": 256}):
        assert few_tiling(replace(spec, **other), hopper) is None
    assert few_tiling(spec, ARCHS["gfx942"]) is None


def test_rows_without_keys_are_zero(facts: DeviceFacts, rng: torch.Generator) -> None:
    """Rows that pad a captured batch have length 0 and may name any page."""
    case = Case(SPEC, [(1, 20), (1, 33), (1, 1)], rng)
    expected = case.expected()
    case.meta.seq_lens[1] = 0
    case.table[1] = -7
    actual = compute(case, facts)
    torch.testing.assert_close(actual[[0, 2]], expected[[0, 2]], rtol=1e-4, atol=1e-5)
    assert actual[1].count_nonzero() == 0


@pytest.mark.parametrize("units", [1, 7, 20])
def test_any_number_of_programs_and_calls(
    facts: DeviceFacts, units: int, rng: torch.Generator
) -> None:
    """More programs than tiles, fewer programs than requests; counters return to zero."""
    case = Case(SPEC, STEPS["decode"], rng)
    operation = Attention(SPEC, replace(facts, compute_units=units), decode=SMALL_DECODE)
    expected = case.expected()
    for _ in range(2):
        actual = operation(case.q, case.cache, case.meta, None)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert operation._counters[-1].count_nonzero() == 0


def apart(case: Case) -> AttentionMetadata:
    """Return the step with each token as a request, and which of these are of one sequence."""
    whole = case.meta
    starts = whole.query_start_loc.long()
    counts = starts.diff()
    tokens = torch.arange(int(starts[-1]), device=starts.device)
    behind = starts[1:].repeat_interleave(counts) - tokens - 1
    spans = torch.stack([starts[:-1], starts[1:]], 1).repeat_interleave(counts, 0)
    return replace(
        whole,
        num_reqs=len(tokens),
        query_start_loc=torch.arange(len(tokens) + 1, device=starts.device).int(),
        seq_lens=(whole.seq_lens.repeat_interleave(counts) - behind).int(),
        block_table=whole.block_table.repeat_interleave(counts, 0),
        max_query_len=1,
        spans=spans.int(),
    )


@pytest.mark.parametrize("units", [1, 40])
@pytest.mark.parametrize("changes", [*VARIANTS[:2], *VARIANTS[4:7]], ids=str)
def test_tokens_of_one_sequence_are_computed_together(
    facts: DeviceFacts, changes: dict[str, object], units: int, rng: torch.Generator
) -> None:
    """More of them than fit a tile, too; a table that names others' blocks for all but the first
    of each tile is not read."""
    spec = replace(SPEC, **changes)
    case = Case(spec, [(3, 37), (1, 1), (11, 90), (2, 2)], rng)
    operation = Attention(spec, replace(facts, compute_units=units), decode=SMALL_DECODE)
    assert operation.shares_keys
    step = apart(case)
    shared = attention.num_shared(spec.num_heads // spec.num_kv_heads)
    first = (torch.arange(step.num_reqs) - step.spans[:, 0].cpu()) % shared == 0
    step.block_table[~first] = 0
    for _ in range(2):
        found = operation(case.q, case.cache, step, case.sinks)
        torch.testing.assert_close(found, case.expected(), rtol=1e-4, atol=1e-5)
    assert operation._counters[-1].count_nonzero() == 0


def test_who_computes_tokens_of_a_sequence_together(facts: DeviceFacts) -> None:
    assert [attention.num_shared(group) for group in (1, 3, 4, 7, 8, 16, 64)] == [
        *(16, 4, 4, 2, 2, 1, 1)
    ]
    for alone, heads in ((True, 4), (False, 32)):
        spec = replace(SPEC, num_heads=heads)
        assert not Attention(spec, facts, alone=alone).shares_keys


def test_alone_a_row_is_the_same_in_every_batch(facts: DeviceFacts, rng: torch.Generator) -> None:
    case = Case(SPEC, STEPS["decode"], rng)
    together = compute(case, facts, alone=True)
    torch.testing.assert_close(together, case.expected(), rtol=1e-4, atol=1e-5)
    for row in range(len(together)):
        meta = AttentionMetadata(
            1,
            case.meta.query_start_loc[:2],
            case.meta.seq_lens[row : row + 1],
            case.table[row : row + 1],
            case.meta.slot_mapping[row : row + 1],
            1,
            case.meta.max_seq_len,
        )
        operation = Attention(SPEC, facts, alone=True, decode=SMALL_DECODE)
        single = operation(case.q[row : row + 1], case.cache, meta, None)
        assert torch.equal(single[0], together[row])


@pytest.mark.parametrize("step", [(1, 12), (5, 12)], ids=["decode", "prefill"])
def test_blocks_far_apart_need_64_bits(
    facts: DeviceFacts, step: tuple[int, int], rng: torch.Generator
) -> None:
    case = Case(replace(SPEC, **HALF), [step], rng)
    expected = case.expected()
    # Keys and values beside each other in the one block that is used, the last of three.
    own = case.cache[:, int(case.table[0, 0])].flatten()
    blocks = far_apart(torch.stack([torch.full_like(own, NAN)] * 2 + [own]))
    case.cache = blocks.unflatten(1, (2, -1)).transpose(0, 1)
    case.table[:] = 2
    torch.testing.assert_close(compute(case, facts), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("steps", [[(1, 7)] * 3, [(3, 7)]], ids=["decode", "prefill"])
def test_queries_far_apart_need_64_bits(
    facts: DeviceFacts, steps: list[tuple[int, int]], rng: torch.Generator
) -> None:
    case = Case(replace(SPEC, **HALF), steps, rng)
    expected = case.expected()
    case.q = far_apart(case.q)
    actual = Attention(case.spec, facts, decode=SMALL_DECODE, prefill=SMALL_PREFILL)(
        case.q, case.cache, case.meta, None
    )
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)


def test_more_requests_than_one_block_of_starts(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(SPEC, num_heads=1, num_kv_heads=1, head_dim=16)
    case = Case(spec, [(2, 3)] * 5 + [(1, 2), (4, 9)], rng)
    operation = Attention(spec, facts, decode=SMALL_DECODE, prefill=SMALL_PREFILL)
    operation._prefill["BLOCK_R"] = 2
    actual = operation(case.q, case.cache, case.meta, None)
    torch.testing.assert_close(actual, case.expected(), rtol=1e-4, atol=1e-5)


def test_empty_batch(facts: DeviceFacts) -> None:
    empty = torch.empty(0, dtype=torch.int32, device=facts.device)
    meta = AttentionMetadata(0, empty, empty, empty.view(0, 1), empty, 0, 0)
    q = torch.empty(0, 4, 64, device=facts.device)
    cache = torch.empty(2, 1, 16 * 2 * 64, device=facts.device)
    assert Attention(SPEC, facts)(q, cache, meta, None).shape == (0, 256)


def test_every_number_of_requests_has_a_kernel() -> None:
    found = [attention.request_block(n) for n in (1, 64, 65, 4096, 4097, 65536)]
    assert found == [64, 64, 256, 4096, 8192, 65536]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "float16"}, "kv_dtype float16 differs"),
        ({"head_dim": 60}, "head_dim 60"),
        ({"head_dim": 264}, "head_dim 264"),
        ({"block_size": 48}, "block_size 48"),
        ({"block_size": 8}, "block_size 8"),
        ({"softcap": 2.0, "alibi": Alibi(4)}, "soft caps and ALiBi"),
        ({"scale": 0.0}, "scale 0.0"),
        ({"num_heads": 5}, "5 heads"),
        ({"num_heads": 256}, "share a KV head"),
        ({"dtype": "float64", "kv_dtype": "float64"}, "element type float64"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    assert reason in attention.supports(replace(SPEC, **changes), facts).reason
