"""Attention to a window and to entries against float64: shapes, steps, refusals."""

from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import compressed_attention as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import FAR, in_dtype
from hotshoe_triton import compressed

SPEC = cases.BASE
VARIANTS = [
    {"group": None, "top_k": None},
    {"group": 8, "top_k": None},
    {"group": 32, "top_k": None, "block_size": 8},
    {"num_heads": 7, "window": 1},
    {"num_heads": 20, "block_size": 4},
    {"head_dim": 96, "rope_dim": 8},
    {"top_k": 37, "group": 2},
    {"window": 500},
]
DECODE = Batch(tuple((1, n) for n in (1, 12, 13, 50)))
LONG = Batch(tuple((1, n) for n in (1, 12, 40, 150)))
#: With tiles for several programs.
DIVIDED = [
    {"window": 100, "group": None, "top_k": None},
    {"window": 40, "group": 2, "top_k": None},
    {"num_heads": 7, "window": 70, "top_k": 37, "group": 2},
    {"head_dim": 96, "rope_dim": 8, "window": 70},
]
MIXED = Batch(((1, 45), (1, 1), (3, 21), (3, 3)), spare=8, gap=2)


def check(spec, steps, facts) -> None:
    assert compressed.supports(spec, facts).accepted
    check_results(
        drawn(cases.SUITE, spec, steps), compressed.CompressedAttention(spec, facts), facts
    )


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), MIXED, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, MIXED], ids=["decode", "mixed"])
def test_steps(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


@pytest.mark.parametrize("changes", DIVIDED, ids=str)
def test_few_tokens_divide_their_rows(facts: DeviceFacts, changes: dict[str, object]) -> None:
    """A part may have rows of the window alone, of entries alone, of both, or none."""
    spec, wide = replace(SPEC, **changes), replace(facts, compute_units=132)
    assert compressed.CompressedAttention(spec, wide)._parts(4, 150) > 2
    check(spec, LONG, wide)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    check(in_dtype(SPEC, "bfloat16"), replace(DECODE, far=FAR), facts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 1024}, "head_dim 1024 is above 512"),
        ({"head_dim": 33, "rope_dim": 8}, "head_dim 33 is odd"),
        ({"block_size": 12}, "block_size 12 is not a power of two"),
        ({"group": 3}, "groups of 3 tokens"),
        ({"kv_dtype": "int8"}, "not in int8"),
        ({"kv_dtype": "bfloat16"}, "kv_dtype bfloat16 differs from dtype float32"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = compressed.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert reason in verdict.reason
