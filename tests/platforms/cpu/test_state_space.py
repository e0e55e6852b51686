"""Mamba-2 blocks against the recurrence in float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import STEPS, check, check_alone, check_recorded, draw

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.cases.state_space import BASE, SUITE, VARIATIONS
from hotshoe_conformance.cases.states import States
from hotshoe_cpu.native import kernels
from hotshoe_cpu.state_space import StateSpace, supports

VARIANTS = [
    *VARIATIONS,
    {"conv_width": 6, "checkpoints": "all", "block_size": 4},
    {"conv_dtype": "float16", "state_dtype": "float16"},
    {"head_dim": 5, "state_size": 3, "norm": "after", "norm_eps": 1e-5},
    {"num_heads": 5, "head_dim": 64, "state_size": 128},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(draw(SUITE, spec, STEPS["mixed"], rng), StateSpace(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str, rng: torch.Generator) -> None:
    spec = replace(in_dtype(BASE, dtype), checkpoints="all")
    check(draw(SUITE, spec, steps, rng), StateSpace(spec, facts))


def test_a_block_without_biases(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["mixed"], rng)
    problem.weights = replace(problem.weights, conv_bias=None)
    check(problem, StateSpace(BASE, facts))


def test_decays_are_exact_where_much_has_decayed_before(
    facts: DeviceFacts, rng: torch.Generator
) -> None:
    problem = draw(SUITE, BASE, States(((30, 30), (14, 20))), rng)
    problem.projected[:, -BASE.num_heads :] = -9.0
    problem.projected[::7, -BASE.num_heads :] = 300.0
    check(problem, StateSpace(BASE, facts))


def test_a_sequence_does_not_depend_on_others(facts: DeviceFacts, rng: torch.Generator) -> None:
    spec = replace(BASE, dtype="bfloat16", norm="after", norm_eps=1e-5)
    check_alone(draw(SUITE, spec, STEPS["mixed"], rng), StateSpace(spec, facts))


def test_a_recorded_step_is_repeated(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["decode"], rng)
    check_recorded(problem, StateSpace(BASE, facts), kernels(facts))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation": "gelu"}, "activation gelu is not one of silu, identity"),
        ({"norm": "around"}, "norm around is not one of none, after, before"),
        ({"num_groups": 3}, "3 groups do not divide 4 heads"),
        ({"norm_groups": 3}, "3 parts of a norm do not divide 64 channels"),
        ({"conv_dtype": "float64"}, "conv_dtype float64"),
    ],
)
def test_refusals(facts: DeviceFacts, change: dict[str, object], reason: str) -> None:
    verdict = supports(replace(BASE, **change), facts)
    assert not verdict.accepted and reason in verdict.reason
