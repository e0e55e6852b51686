"""Gated linear recurrences against the recurrence in float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import STEPS, apart, check, check_alone, check_recorded, draw

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.cases.rg_lru import BASE, SUITE, VARIATIONS
from hotshoe_conformance.cases.states import States
from hotshoe_cpu.native import kernels
from hotshoe_cpu.rg_lru import RgLru, supports

VARIANTS = [
    *VARIATIONS,
    {"conv_width": 6, "checkpoints": "all", "block_size": 4},
    {"conv_dtype": "float16", "state_dtype": "float16"},
    {"inner_size": 300, "num_heads": 2},
    {"inner_size": 9, "num_heads": 3},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(draw(SUITE, spec, STEPS["mixed"], rng), RgLru(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str, rng: torch.Generator) -> None:
    spec = replace(in_dtype(BASE, dtype), checkpoints="all")
    check(draw(SUITE, spec, steps, rng), RgLru(spec, facts))


@pytest.mark.parametrize("rate", [-1e-9, -1e-3, -1e4])
def test_decays_of_nearly_nothing_and_nearly_all(
    facts: DeviceFacts, rate: float, rng: torch.Generator
) -> None:
    problem = draw(SUITE, BASE, STEPS["mixed"], rng)
    problem.weights = replace(problem.weights, rate=torch.full((BASE.inner_size,), rate))
    check(problem, RgLru(BASE, facts))


def test_threads_divide_the_channels(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(BASE, inner_size=516, num_heads=2)
    check(draw(SUITE, spec, STEPS["mixed"], rng), RgLru(spec, facts))


def test_a_sequence_alone(facts: DeviceFacts, rng: torch.Generator) -> None:
    check_alone(draw(SUITE, BASE, STEPS["mixed"], rng), RgLru(BASE, facts))


def test_not_a_number_reaches_its_own_head_alone(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, States(((3, 3),)), rng)
    op = RgLru(BASE, facts)
    before = problem.call(op, apart)["out"]
    problem.projected[1, 0] = float("nan")
    out, head = problem.call(op, apart)["out"], BASE.head_dim
    assert out[1:, :head].isnan().all()
    assert torch.equal(out[:, head:], before[:, head:]) and torch.equal(out[0], before[0])


@pytest.mark.parametrize("steps", ["decode", "mixed"])
def test_calls_repeat(facts: DeviceFacts, steps: str, rng: torch.Generator) -> None:
    check_recorded(draw(SUITE, BASE, STEPS[steps], rng), RgLru(BASE, facts), kernels(facts))


def test_refusals(facts: DeviceFacts) -> None:
    for changes, reason in (
        ({"state_dtype": "float64"}, "state_dtype float64 is not one of"),
        ({"num_heads": 5}, "5 heads do not divide 48 channels"),
        ({"num_heads": 0}, "0 heads do not divide"),
        ({"conv_width": 1}, "conv_width 1 leaves nothing to carry on"),
    ):
        verdict = supports(replace(BASE, **changes), facts)
        assert not verdict.accepted and reason in verdict.reason
