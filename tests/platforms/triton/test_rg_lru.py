"""Gated linear recurrences against the recurrence in float64: kinds of states, steps, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_caches, device_facts, drawn, far_apart
from tests.platforms.triton.test_state_space import DECODE

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import rg_lru as cases
from hotshoe_conformance.cases.states import States
from hotshoe_triton import rg_lru

SPEC = replace(cases.BASE, inner_size=8, num_heads=2)
#: Few tokens: an interpreter runs every program of every token.
SHORT = States(((1, 33), (5, 18), (1, 1)))
CHUNK = States(((19, 34), (2, 2)))
VARIANTS = [
    {"inner_size": 40, "num_heads": 1, "state_dtype": "bfloat16"},
    {"conv_width": 6, "checkpoints": "all", "block_size": 4, "inner_size": 36, "num_heads": 3},
    {"checkpoints": "all", "conv_dtype": "bfloat16", "conv_width": 2},
    {"checkpoints": "align", "block_size": 12},
]


def check(spec, steps, facts, move=None) -> None:
    assert rg_lru.supports(spec, facts).accepted
    check_caches(drawn(cases.SUITE, spec, steps), rg_lru.RgLru(spec, facts), facts, move)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), SHORT, facts)


@pytest.mark.parametrize(
    ("steps", "dtype"),
    [(DECODE, "float32"), (DECODE, "float16"), (CHUNK, "bfloat16")],
    ids=["decode", "decode-float16", "chunk-bfloat16"],
)
def test_steps(facts: DeviceFacts, steps: States, dtype: str) -> None:
    check(replace(SPEC, dtype=dtype, checkpoints="all"), steps, facts)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    for steps in (DECODE, CHUNK):
        check(SPEC, steps, facts, far_apart)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = rg_lru.RgLru(SPEC, facts)
    nothing = torch.empty(0, sum(SPEC.sections), device=facts.device)
    assert op(nothing, (nothing, nothing), None, None).shape == (0, SPEC.inner_size)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"block_size": 6, "checkpoints": "all"}, "block_size 6 is no multiple of 4"),
        ({"dtype": "int8"}, "element type int8 is not one of"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = rg_lru.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason
