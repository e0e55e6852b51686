"""The gated delta rule against the recurrence in float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import STEPS, check, check_alone, check_recorded, draw

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata
from hotshoe_conformance.cases.base import in_dtype
from hotshoe_conformance.cases.gated_delta import BASE, SUITE, VARIATIONS
from hotshoe_conformance.cases.states import States
from hotshoe_cpu.gated_delta import GatedDelta, supports
from hotshoe_cpu.native import kernels

VARIANTS = [
    *VARIATIONS,
    {"conv_width": 6, "checkpoints": "all", "block_size": 4},
    {"conv_dtype": "float16", "state_dtype": "float16", "decay": "channel"},
    {"key_dim": 3, "value_dim": 5, "decay": "channel"},
    {"key_dim": 128, "value_dim": 128, "decay": "channel"},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(draw(SUITE, spec, STEPS["mixed"], rng), GatedDelta(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str, rng: torch.Generator) -> None:
    spec = replace(in_dtype(BASE, dtype), checkpoints="all")
    check(draw(SUITE, spec, steps, rng), GatedDelta(spec, facts))


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_decays_are_exact_where_much_has_decayed_before(
    facts: DeviceFacts, decay: str, rng: torch.Generator
) -> None:
    spec = replace(BASE, decay=decay)
    problem = draw(SUITE, spec, States(((30, 30), (14, 20))), rng)
    problem.projected[:, -spec.num_decays :] = -9.0
    problem.projected[::7, -spec.num_decays :] = 3e4
    check(problem, GatedDelta(spec, facts))


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_sequence_does_not_depend_on_others(
    facts: DeviceFacts, decay: str, rng: torch.Generator
) -> None:
    spec = replace(BASE, decay=decay, dtype="bfloat16")
    check_alone(draw(SUITE, spec, STEPS["mixed"], rng), GatedDelta(spec, facts))


def test_a_row_that_is_not_finite_harms_no_other(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem, op = draw(SUITE, BASE, STEPS["mixed"], rng), GatedDelta(BASE, facts)
    _, rows = problem.alone()
    place = lambda tensor, written=False: tensor.clone()  # noqa: E731
    whole = problem.call(op, place)["out"]
    problem.projected[: rows.start] = float("nan")
    found = problem.call(op, place)["out"]
    assert found[: rows.start].isnan().all()
    assert torch.equal(found[rows.start :], whole[rows.start :])


def test_a_recorded_step_is_repeated(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, STEPS["decode"], rng)
    check_recorded(problem, GatedDelta(BASE, facts), kernels(facts))


def test_rows_without_a_request_are_left_alone(facts: DeviceFacts, rng: torch.Generator) -> None:
    problem = draw(SUITE, BASE, States(((1, 2),)), rng)
    caches = problem._caches()
    nobody = torch.zeros(1, dtype=torch.int32)
    step = AttentionMetadata(0, nobody, nobody[:0], problem.table, nobody, 0, 0)
    out = GatedDelta(BASE, facts)(problem.projected, caches, step, problem.weights)
    assert out.shape == (1, BASE.inner_size)
    for found, before in zip(caches, problem._caches(), strict=True):
        torch.testing.assert_close(found, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decay": "row"}, "decay row is not one of head, channel"),
        ({"gate": "tanh"}, "gate tanh is not one of silu, sigmoid"),
        ({"decay_floor": 0.0}, "decay_floor 0.0 is not below 0"),
        ({"num_key_heads": 3}, "3 key heads do not divide 4 heads"),
        ({"state_dtype": "float64"}, "state_dtype float64"),
    ],
)
def test_refusals(facts: DeviceFacts, change: dict[str, object], reason: str) -> None:
    verdict = supports(replace(BASE, **change), facts)
    assert not verdict.accepted and reason in verdict.reason
