"""Mamba-1 blocks against the recurrence in float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import STEPS, check, draw

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.cases.selective_scan import BASE, SUITE, VARIATIONS
from hotshoe_conformance.cases.states import States
from hotshoe_cpu.selective_scan import SelectiveScan, supports

VARIANTS = [
    *VARIATIONS,
    {"conv_width": 6, "checkpoints": "all", "block_size": 4},
    {"conv_dtype": "float16", "state_dtype": "float16"},
    {"inner_size": 150, "state_size": 21, "norm_eps": 1e-5},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(draw(SUITE, spec, STEPS["mixed"], rng), SelectiveScan(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str, rng: torch.Generator) -> None:
    spec = replace(in_dtype(BASE, dtype), checkpoints="all")
    check(draw(SUITE, spec, steps, rng), SelectiveScan(spec, facts))


def test_a_prompt_of_several_tiles(facts: DeviceFacts, rng: torch.Generator) -> None:
    check(draw(SUITE, BASE, States(((70, 75), (33, 33))), rng), SelectiveScan(BASE, facts))


def test_a_block_without_biases(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["mixed"], rng)
    problem.weights = replace(problem.weights, conv_bias=None)
    check(problem, SelectiveScan(BASE, facts))


def test_refusals(facts: DeviceFacts) -> None:
    verdict = supports(replace(BASE, state_dtype="float64"), facts)
    assert not verdict.accepted and "state_dtype float64 is not one of" in verdict.reason
