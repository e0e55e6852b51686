"""Latent attention over chosen rows against float64: shapes, steps, shared rows, far rows."""

from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import sparse_mla_attention as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import FAR, in_dtype
from hotshoe_triton import sparse
from hotshoe_triton.attention import Tiling

SPEC = cases.SPARSE
SMALL = Tiling(16, 16, 4, 1)
VARIANTS = [
    {"num_heads": 7, "interleaved": True},
    {"num_heads": 20, "block_size": 1},
    {"latent_dim": 96, "rope_dim": 8, "v_dim": 48, "nope_dim": 24},
    {"rope_dim": 0},
    {"rope_dim": 0, "kv_dtype": "int8"},
    {"kv_dtype": "int8"},
    {"kv_dtype": "float8_e4m3fn", "dtype": "bfloat16"},
    {"adapted": True},
]
DECODE = Batch(tuple((1, n) for n in (1, 12, 13, 50)))
MIXED = Batch(((1, 45), (1, 1), (3, 21), (3, 3)), spare=8, gap=2)


def check(spec, steps, facts, **options) -> None:
    assert sparse.supports(spec, facts).accepted
    problem, op = drawn(cases.SUITE, spec, steps), sparse.SparseMlaAttention(spec, facts, **options)
    for _ in range(2):  # the second step finds counters as the first one left them
        check_results(problem, op, facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, attention=replace(SPEC.attention, **changes)), MIXED, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, MIXED], ids=["decode", "mixed"])
def test_steps(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


@pytest.mark.parametrize("top_k", [1, 37, 2048])
def test_programs_share_what_few_tokens_chose(facts: DeviceFacts, top_k: int) -> None:
    spec = replace(SPEC, top_k=top_k)
    for units in (3, 40):
        check(spec, Batch(((1, 50), (1, 9))), replace(facts, compute_units=units), tiling=SMALL,
              share=16)  # fmt: skip


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    check(in_dtype(SPEC, "bfloat16"), replace(DECODE, far=FAR), facts)


def test_refusals() -> None:
    facts = device_facts("sm_90")
    spec = replace(SPEC, attention=replace(SPEC.attention, latent_dim=1024))
    assert "latent_dim 1024 is above" in sparse.supports(spec, facts).reason
    beside = sparse.supports(replace(SPEC, sinks=True), facts)
    assert "sinks beside chosen tokens" in beside.reason
