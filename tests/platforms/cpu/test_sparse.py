"""The native choices of tokens and blocks, and attention to them; NaN harms its own row."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import check

from hotshoe.platform import DeviceFacts
from hotshoe.slots import CacheView, IndexerSpec, MlaAttentionSpec, SparseMlaSpec, StepShape
from hotshoe.slots.reference import indexer, sparse_mla_attention
from hotshoe.slots.reference.rows import packed
from hotshoe_conformance.cases import block_indexer as block_cases
from hotshoe_conformance.cases.attention import MIXED
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.place import Place
from hotshoe_cpu import sparse

CHOICE = IndexerSpec(9, 24, 8, 13, "float32", "float32", 8)
LATENT = MlaAttentionSpec(35, 40, 16, 8, 12, "float32", "float32", 8, 0.2)
#: Tokens of the step, and in all.
REQUESTS = ((1, 60), (21, 50), (3, 3), (1, 1))
COUNT = sum(count for count, _ in REQUESTS)


def step() -> tuple[StepShape, CacheView]:
    counts, lengths = zip(*REQUESTS, strict=True)
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    table = torch.randperm(40)[:32].view(4, 8).int()
    slots = [
        int(table[r, at // 8]) * 8 + at % 8
        for r, (count, length) in enumerate(REQUESTS)
        for at in range(length - count, length)
    ]
    shape = StepShape(4, starts, torch.tensor(lengths).int(), max(counts), max(lengths))
    return shape, CacheView(table, torch.tensor(slots).int())


@pytest.mark.parametrize("top_k", [1, 13, 64])
def test_choices_are_those_of_the_reference(
    facts: DeviceFacts, top_k: int, rng: torch.Generator
) -> None:
    spec = replace(CHOICE, top_k=top_k)
    assert sparse.supports_choice(spec, facts).accepted
    cache, (shape, view) = torch.randn(40, 8, 24, generator=rng), step()
    q = torch.randn(COUNT + 2, 9, 24, generator=rng)
    weights = torch.randn(COUNT + 2, 9, generator=rng)
    ours, theirs = sparse.Indexer(spec, facts), indexer.Indexer(spec, facts)
    found = [op(q, weights, cache, op.prepare(shape, view)) for op in (ours, theirs)]
    assert found[0].shape == (COUNT + 2, top_k) and found[0].dtype == torch.int32
    assert torch.equal(*(part.sort(dim=1).values for part in found))


@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_choices_among_keys_of_8_bits(
    facts: DeviceFacts, dtype: str, kind: str, rng: torch.Generator
) -> None:
    spec = replace(CHOICE, head_dim=48, dtype=dtype, kv_dtype=kind)
    assert sparse.supports_choice(spec, facts).accepted
    cache = packed(spec.row, torch.randn(320, 48, generator=rng)).view(40, 8, -1)
    cache[:, :, 52:64] = 0xFF  # a scale fills four places, of which one is read
    q = torch.randn(COUNT, 9, 48, generator=rng).to(getattr(torch, dtype))
    weights, (shape, view) = torch.randn(COUNT, 9, generator=rng), step()
    ours, theirs = sparse.Indexer(spec, facts), indexer.Indexer(spec, facts)
    found = [op(q, weights, cache, op.prepare(shape, view)) for op in (ours, theirs)]
    ours_of, theirs_of = ([{*row} for row in part.tolist()] for part in found)
    others = [len(a ^ b) for a, b in zip(ours_of, theirs_of, strict=True)]
    assert sum(others) <= 2, others  # scores that the order of sums brings to change places


def test_scores_that_are_not_numbers(facts: DeviceFacts, rng: torch.Generator) -> None:
    """A key of NaN is chosen last, and a query of NaN gets positions that it sees."""
    cache, (shape, view) = torch.randn(40, 8, 24, generator=rng), step()
    cache[view.block_table[0, 0], 5] = torch.nan
    q, weights = torch.randn(COUNT, 9, 24, generator=rng), torch.ones(COUNT, 9)
    q[1] = torch.nan
    op = sparse.Indexer(CHOICE, facts)
    found = op(q, weights, cache, op.prepare(shape, view))
    assert 5 not in found[0] and len(found[0].unique()) == 13
    assert found[1].min() >= 0 and found[1].max() <= 29 and len(found[1].unique()) == 13


@pytest.mark.parametrize(
    "changes", [*block_cases.VARIATIONS, {"kv_dtype": "int8"}, {"dtype": "bfloat16"}], ids=str
)
def test_blocks(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(block_cases.BASE, **changes)
    if "dtype" in changes:
        spec = in_dtype(spec, str(changes["dtype"]))
    assert sparse.supports_blocks(spec, facts).accepted
    problem, op = (
        block_cases.SUITE.problem(Setup(spec, MIXED), rng),
        sparse.BlockIndexer(spec, facts),
    )
    check(problem, op, Place("cpu"))


@pytest.mark.parametrize("form", ["", "int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 3e-2), ("float16", 4e-3)]
)
def test_attention_is_that_of_the_reference(
    facts: DeviceFacts, dtype: str, tolerance: float, form: str, rng: torch.Generator
) -> None:
    attention = replace(LATENT, latent_dim=48, dtype=dtype, kv_dtype=form or dtype)
    spec, kind = SparseMlaSpec(attention, 70, sinks=not form), getattr(torch, dtype)
    assert sparse.supports(spec, facts).accepted
    shape, view = step()
    rows = torch.randn(320, 56, generator=rng).to(kind)
    cache = packed(attention.row, rows).view(40, 8, -1)
    q = torch.randn(COUNT, 35, 24, generator=rng).to(kind)
    up = (torch.randn(35, 28, 48, generator=rng) / 6).to(kind)
    chosen = torch.full((COUNT, 70), -1, dtype=torch.int32)
    seen = [at + 1 for count, length in REQUESTS for at in range(length - count, length)]
    for row, number in zip(chosen, seen, strict=True):
        picked = torch.randperm(number, generator=rng)[:45]
        row[: len(picked)] = picked
    sinks = None if form else torch.tensor([-torch.inf, 1e6, *torch.randn(33, generator=rng)])
    found = []
    for op in (sparse.SparseMlaAttention(spec, facts), sparse_mla_attention.SparseMlaAttention):
        built = op if not isinstance(op, type) else op(spec, facts)
        built.load(up)
        found.append(built(q, cache, built.prepare(shape, view), chosen, sinks=sinks))
    assert found[0].shape == (COUNT, 35 * 12) and found[0].dtype == kind
    torch.testing.assert_close(*found, rtol=tolerance, atol=tolerance)


def test_refusals(facts: DeviceFacts) -> None:
    four = replace(CHOICE, kv_dtype="int4")
    assert "kv_dtype int4 is not one of float32" in sparse.supports_choice(four, facts).reason
    odd = replace(CHOICE, kv_dtype="int8")
    assert "multiples of 16 bytes, not 24" in sparse.supports_choice(odd, facts).reason
    spec = SparseMlaSpec(replace(LATENT, dtype="float64"), 3)
    assert "element type float64" in sparse.supports(spec, facts).reason
    crossing = replace(block_cases.BASE, group=12)
    assert "use a --block-size that divides that" in sparse.supports_blocks(crossing, facts).reason
