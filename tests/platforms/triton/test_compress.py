"""Entries of groups against float64: shapes, steps, refusals."""

from dataclasses import replace

import pytest
from tests.platforms.triton.conftest import check_results, device_facts, drawn

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import compress as cases
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_triton import compress

SPEC = cases.BASE
VARIANTS = [
    {"overlap": False},
    {"group": 64, "overlap": False},
    {"group": 32, "overlap": True, "block_size": 8},
    {"group": 6, "block_size": 12},
    {"group": 2},
    {"head_dim": 96, "rope_dim": 8},
    {"head_dim": 512, "rope_dim": 64},
    {"rope_dim": 0},
    {"rope_dim": 32},
    {"norm_eps": 0.1},
    {"kv_dtype": "bfloat16"},
]
DECODE = Batch(tuple((1, n) for n in (1, 12, 13, 64)))
MIXED = Batch(((1, 64), (1, 1), (3, 21), (3, 3), (67, 130)), spare=8, gap=2)
MANY = Batch(tuple((1 + n % 3, 4 * n + 4) for n in range(20)))


def check(spec, steps, facts) -> None:
    assert compress.supports(spec, facts).accepted
    check_results(drawn(cases.SUITE, spec, steps), compress.Compress(spec, facts), facts)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), MIXED, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, MIXED], ids=["decode", "mixed"])
def test_steps(facts: DeviceFacts, steps: Batch, dtype: str) -> None:
    check(in_dtype(SPEC, dtype), steps, facts)


def test_a_program_finds_its_request_among_more_than_it_reads_at_once(
    facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few at once: the interpreter takes many seconds for more requests than it reads in fact."""
    monkeypatch.setattr(compress, "REQUESTS", 8)
    assert len(MANY.requests) > 2 * compress.REQUESTS
    check(SPEC, MANY, facts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 1024}, "head_dim 1024 is above 512"),
        ({"head_dim": 33}, "head_dim 33 is odd"),
        ({"group": 3}, "groups of 3 tokens"),
        ({"kv_dtype": "int8"}, "not in int8"),
        ({"norm_eps": None}, "entries that are not normed"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = compress.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert reason in verdict.reason
