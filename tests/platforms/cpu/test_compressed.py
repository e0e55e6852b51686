"""Entries of groups of tokens, and attention to a window and entries, against float64."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import check

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import compress, compressed_attention
from hotshoe_conformance.cases.attention import MIXED, SHAPES
from hotshoe_conformance.cases.base import DTYPES, Setup, in_dtype
from hotshoe_conformance.place import Place
from hotshoe_cpu.compressed import Compress, CompressedAttention, supports

CASES = [(compress, Compress), (compressed_attention, CompressedAttention)]
VARIANTS = [
    (cases, op, changes)
    for cases, op in CASES
    for changes in (*cases.VARIATIONS, {"kv_dtype": "bfloat16"}, {"dtype": "bfloat16"})
]
NAMES = [f"{op.__name__}-{changes}" for _, op, changes in VARIANTS]


@pytest.mark.parametrize(("cases", "op", "changes"), VARIANTS, ids=NAMES)
def test_variants(facts: DeviceFacts, cases, op, changes, rng: torch.Generator) -> None:
    spec = replace(cases.BASE, **changes)
    assert supports(spec, facts).accepted
    check(cases.SUITE.problem(Setup(spec, MIXED), rng), op(spec, facts), Place("cpu"))


@pytest.mark.parametrize(("cases", "op"), CASES, ids=["compress", "compressed_attention"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_steps(facts: DeviceFacts, cases, op, dtype: str, rng: torch.Generator) -> None:
    spec = in_dtype(cases.BASE, dtype)
    for batch in (SHAPES[0], SHAPES[3], SHAPES[5]):
        check(cases.SUITE.problem(Setup(spec, batch), rng), op(spec, facts), Place("cpu"))


def test_a_text_is_divided_among_threads(facts: DeviceFacts, rng: torch.Generator) -> None:
    """Of few queries each reads window and entries in parts."""
    spec = replace(compressed_attention.BASE, num_heads=35, window=700, group=2, top_k=None)
    batch = replace(MIXED, requests=((1, 900), (2, 40)))
    problem = compressed_attention.SUITE.problem(Setup(spec, batch), rng)
    problem.sinks[:2] = torch.tensor([-torch.inf, 1e4])
    check(problem, CompressedAttention(spec, facts), Place("cpu"))


def test_refusals(facts: DeviceFacts) -> None:
    for cases, changes, reason in (
        (compress, {"kv_dtype": "int8"}, "not in int8; use --kv-cache-dtype auto"),
        (compress, {"group": 12}, "groups of 12 tokens"),
        (compressed_attention, {"rope_dim": 7}, "an even number of 32 channels, not 7"),
        (compressed_attention, {"dtype": "float64"}, "float64"),
    ):
        verdict = supports(replace(cases.BASE, **changes), facts)
        assert not verdict.accepted and reason in verdict.reason
