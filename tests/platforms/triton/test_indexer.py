"""The choice of tokens, judged by the scores of what was chosen: sizes, steps, parts, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import indexer as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import FAR, in_dtype
from hotshoe_triton import indexer

SPEC = cases.BASE
VARIANTS = [
    {"num_heads": 7, "head_dim": 48},
    {"num_heads": 64, "rope_dim": 32},
    {"head_dim": 128, "rope_dim": 64, "interleaved": True},
    {"top_k": 1, "block_size": 1},
    {"top_k": 37, "block_size": 64, "rope_dim": 0},
    {"top_k": 2048},
    {"kv_dtype": "int8"},
    {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16", "head_dim": 128, "rope_dim": 64},
]
DECODE = Batch(tuple((1, n) for n in (1, 12, 13, 50)))
MIXED = Batch(((1, 45), (1, 1), (3, 21), (3, 3)), spare=8, gap=2)


def check(spec, steps, facts, **options) -> None:
    assert indexer.supports(spec, facts).accepted
    check_results(drawn(cases.SUITE, spec, steps), indexer.Indexer(spec, facts, **options), facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), MIXED, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, MIXED], ids=["decode", "mixed"])
def test_steps(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


def test_queries_go_in_parts_where_scores_are_many(facts: DeviceFacts) -> None:
    check(SPEC, MIXED, facts, most_scores=100)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    check(in_dtype(SPEC, "bfloat16"), replace(DECODE, far=FAR), facts)


@pytest.mark.parametrize("seen", [40, 5000])
def test_of_equal_scores_as_many_as_asked_for(facts: DeviceFacts, seen: int) -> None:
    """Every digit is the same, or every score is one of two, one of them negative."""
    from hotshoe_triton.kernels.indexer import index_choose

    scores = torch.randint(2, (2, seen), device=facts.device).float() * 3 - 1
    scores[1] = 0.0
    scores[1, ::2] = -0.0
    chosen = torch.full((2, 24), -7, dtype=torch.int32, device=facts.device)
    starts, lens = (torch.tensor(x, device=facts.device).int() for x in ([0, 1, 2], [seen] * 2))
    index_choose[(2,)](
        chosen, scores, starts, lens, 0, 2, seen, TOP_K=24, BLOCK_S=2048, BLOCK_R=64, CHAINED=False
    )
    for row, places in zip(scores, chosen, strict=True):
        assert len(set(places.tolist())) == 24 and 0 <= min(places) <= max(places) < seen
        best = row.sort(descending=True).values[:24]
        assert torch.equal(row[places.long()].sort(descending=True).values, best)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = indexer.Indexer(SPEC, facts)
    q = torch.empty(0, SPEC.num_heads, SPEC.head_dim, device=facts.device)
    assert op.write(q, q, q, q, q, q) is q


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "bfloat16"}, "kv_dtype bfloat16 differs from dtype float32"),
        ({"num_heads": 256}, "256 heads are above 128"),
        ({"head_dim": 512}, "head_dim 512 is above 256"),
        ({"rope_dim": 64}, "rope_dim 64 is odd or above head_dim 32"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = indexer.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason
