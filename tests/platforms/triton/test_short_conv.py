"""Short convolutions between gates against float64: kinds of caches, steps, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_caches, device_facts, drawn, far_apart
from tests.platforms.triton.test_state_space import CHUNK, DECODE, SHORT

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import short_conv as cases
from hotshoe_conformance.cases.states import States
from hotshoe_triton import short_conv

SPEC = replace(cases.BASE, inner_size=40)
VARIANTS = [
    {"conv_width": 2, "checkpoints": "align", "inner_size": 12},
    {"conv_width": 7, "checkpoints": "all", "block_size": 4},
    {"conv_dtype": "bfloat16", "checkpoints": "all", "block_size": 12},
    {"inner_size": 300},
]


def check(spec, steps, facts, move=None) -> None:
    assert short_conv.supports(spec, facts).accepted
    check_caches(drawn(cases.SUITE, spec, steps), short_conv.ShortConv(spec, facts), facts, move)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), SHORT, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, CHUNK], ids=["decode", "chunk"])
def test_steps(facts: DeviceFacts, steps: States, dtype: str) -> None:
    check(replace(SPEC, dtype=dtype, checkpoints="all"), steps, facts)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    for steps in (DECODE, CHUNK):
        check(SPEC, steps, facts, far_apart)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = short_conv.ShortConv(SPEC, facts)
    nothing = torch.empty(0, sum(SPEC.sections), device=facts.device)
    assert op(nothing, (nothing,), None, None).shape == (0, SPEC.inner_size)


def test_other_types_are_refused() -> None:
    verdict = short_conv.supports(replace(SPEC, dtype="int8"), device_facts("sm_90"))
    assert not verdict.accepted and "element type int8 is not one of" in verdict.reason
