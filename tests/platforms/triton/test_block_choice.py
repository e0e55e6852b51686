"""The choice of blocks, judged by the scores of what was chosen: sizes, steps, parts, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import block_indexer as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import FAR, in_dtype
from hotshoe_triton import block_choice

SPEC = cases.BASE
VARIANTS = [
    {"num_heads": 5, "head_dim": 48},
    {"head_dim": 128, "rope_dim": 64, "interleaved": True},
    {"top_k": 1, "block_size": 1, "group": 7},
    {"top_k": 4, "local": 2},
    {"top_k": 16},
    {"kv_dtype": "int8"},
    {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16", "head_dim": 128, "rope_dim": 64},
]
DECODE = Batch(tuple((1, n) for n in (1, 16, 17, 90)))
MIXED = Batch(((1, 75), (1, 1), (3, 67), (3, 3)), spare=8, gap=2)


def check(spec, steps, facts, **options) -> None:
    plain = replace(in_dtype(spec, "bfloat16"), kv_dtype="bfloat16")
    assert block_choice.supports(plain, facts).accepted  # the kernel can do more than has run
    op = block_choice.BlockIndexer(spec, facts, **options)
    check_results(drawn(cases.SUITE, spec, steps), op, facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), MIXED, facts)


@pytest.mark.parametrize(
    ("dtype", "steps"), [("float32", DECODE), ("bfloat16", MIXED), ("float16", DECODE)]
)
def test_steps(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


def test_queries_go_in_parts_where_scores_are_many(facts: DeviceFacts) -> None:
    check(SPEC, MIXED, facts, most_scores=20)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    check(in_dtype(SPEC, "bfloat16"), replace(DECODE, far=FAR), facts)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = block_choice.BlockIndexer(SPEC, facts)
    q = torch.empty(0, SPEC.num_heads, SPEC.head_dim, device=facts.device)
    assert op.write(q, q, q, q, q, q) is q


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kv_dtype": "float32"}, "kv_dtype float32 differs from dtype bfloat16"),
        ({"dtype": "float16", "kv_dtype": "float16"}, "only bfloat16 has run on a device"),
        ({"kv_dtype": "int8"}, "keys in int8 have not run on a device"),
        ({"num_heads": 256}, "256 heads are above 128"),
        ({"head_dim": 512}, "head_dim 512 is above 256"),
        ({"rope_dim": 64}, "rope_dim 64 is odd or above head_dim 32"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    spec = replace(in_dtype(SPEC, "bfloat16"), **changes)
    verdict = block_choice.supports(spec, device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason
