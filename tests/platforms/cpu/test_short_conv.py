"""Short convolutions between gates against float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import STEPS, check, check_alone, check_recorded, draw

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.cases.short_conv import BASE, SUITE, VARIATIONS
from hotshoe_conformance.cases.states import States
from hotshoe_cpu.native import kernels
from hotshoe_cpu.short_conv import ShortConv, supports

VARIANTS = [*VARIATIONS, {"inner_size": 300}, {"inner_size": 5, "conv_dtype": "float16"}]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(draw(SUITE, spec, STEPS["mixed"], rng), ShortConv(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str, rng: torch.Generator) -> None:
    spec = replace(in_dtype(BASE, dtype), checkpoints="all")
    check(draw(SUITE, spec, steps, rng), ShortConv(spec, facts))


def test_a_block_without_biases(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["mixed"], rng)
    problem.weights = replace(problem.weights, conv_bias=None)
    check(problem, ShortConv(BASE, facts))


def test_a_sequence_does_not_depend_on_others(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(BASE, dtype="bfloat16")
    check_alone(draw(SUITE, spec, STEPS["mixed"], rng), ShortConv(spec, facts))


def test_a_recorded_step_is_repeated(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["decode"], rng)
    check_recorded(problem, ShortConv(BASE, facts), kernels(facts))


def test_refusals(facts: DeviceFacts) -> None:
    verdict = supports(replace(BASE, conv_width=1), facts)
    assert not verdict.accepted and "conv_width 1 leaves nothing to carry on" in verdict.reason
