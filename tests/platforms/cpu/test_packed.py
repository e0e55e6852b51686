"""Packed attention against float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import check

from hotshoe.platform import DeviceFacts
from hotshoe.slots import PackedAttentionSpec
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.cases.packed_attention import (
    BASE,
    MIXED,
    SHAPES,
    SUITE,
    VARIATIONS,
    Requests,
)
from hotshoe_cpu.packed import PackedAttention, supports


@pytest.mark.parametrize("changes", VARIATIONS, ids=str)
def test_variations(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(SUITE.problem(Setup(spec, MIXED), rng), PackedAttention(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: str(len(s.lengths)))
@pytest.mark.parametrize("window", [None, 20])
def test_steps(
    facts: DeviceFacts, shape: Requests, dtype: str, window: int | None, rng: torch.Generator
) -> None:
    spec = replace(in_dtype(BASE, dtype), window=window, rotary_dim=32)
    check(SUITE.problem(Setup(spec, shape), rng), PackedAttention(spec, facts))


def test_a_later_step_may_be_larger_or_smaller(facts: DeviceFacts, rng: torch.Generator) -> None:
    op = PackedAttention(BASE, facts)
    for lengths in ((3, 70), (200, 90, 4), (1,)):
        check(SUITE.problem(Setup(BASE, Requests(lengths)), rng), op)


def test_a_row_that_is_not_finite_spoils_its_request_alone(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    problem = SUITE.problem(Setup(BASE, Requests((40, 65, 9))), rng)
    problem.qkv[50] = float("nan")
    found = problem.call(PackedAttention(BASE, facts), lambda t: t.clone())["out"]
    spoilt = found.isnan().any(1)
    assert spoilt[40:105].all() and not spoilt[:40].any() and not spoilt[105:].any()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 12}, "head_dim 12 is not a multiple of 8 up to 512"),
        ({"scale": -1.0}, "scale -1.0 is not positive"),
        ({"num_kv_heads": 3}, "not 4 for 3"),
        ({"dtype": "float64"}, "float64"),
    ],
)
def test_refusals(facts: DeviceFacts, changes: dict[str, object], reason: str) -> None:
    spec: PackedAttentionSpec = replace(BASE, **changes)
    assert reason in supports(spec, facts).reason
