"""Selective scans against the recurrence in float64: kinds of states, steps, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_caches, device_facts, drawn, far_apart
from tests.platforms.triton.test_state_space import DECODE

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import selective_scan as cases
from hotshoe_conformance.cases.states import States
from hotshoe_triton import selective_scan

SPEC = replace(cases.BASE, inner_size=8)
#: Few tokens: an interpreter runs every program of every token.
SHORT = States(((1, 33), (5, 18), (1, 1)))
CHUNK = States(((13, 18), (2, 2)))
VARIANTS = [
    {"inner_size": 12, "state_size": 12, "dt_rank": 1, "state_dtype": "bfloat16"},
    {"conv_width": 6, "checkpoints": "all", "block_size": 4, "inner_size": 40},
    {"checkpoints": "all", "conv_dtype": "bfloat16", "conv_width": 2},
    {"checkpoints": "align", "state_size": 40, "block_size": 12},
    {"norm_eps": 1e-5},
]


def check(spec, steps, facts, move=None) -> None:
    assert selective_scan.supports(spec, facts).accepted
    check_caches(
        drawn(cases.SUITE, spec, steps), selective_scan.SelectiveScan(spec, facts), facts, move
    )


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), SHORT, facts)


@pytest.mark.parametrize(
    ("steps", "dtype"),
    [(DECODE, "float32"), (DECODE, "float16"), (CHUNK, "bfloat16")],
    ids=["decode", "decode-float16", "chunk-bfloat16"],
)
def test_steps(facts: DeviceFacts, steps: States, dtype: str) -> None:
    check(replace(SPEC, dtype=dtype, checkpoints="all", norm_eps=1e-5), steps, facts)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    for steps in (DECODE, CHUNK):
        check(SPEC, steps, facts, far_apart)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = selective_scan.SelectiveScan(SPEC, facts)
    nothing = torch.empty(0, sum(SPEC.sections), device=facts.device)
    assert op(nothing, (nothing, nothing), None, None).shape == (0, SPEC.inner_size)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state_size": 512}, "state_size 512 is above 256"),
        ({"dtype": "int8"}, "element type int8 is not one of"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = selective_scan.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason
