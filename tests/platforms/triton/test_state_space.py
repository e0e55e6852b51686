"""State-space blocks against the recurrence in float64: kinds of states, steps, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_caches, device_facts, drawn, far_apart

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases import state_space as cases
from hotshoe_conformance.cases.states import States
from hotshoe_triton import state_space

SPEC = replace(cases.BASE, num_heads=2)
NORMED = replace(SPEC, norm="after", norm_eps=1e-5, norm_groups=2, num_groups=2)
VARIANTS = [
    {"num_heads": 4, "num_groups": 2, "state_dtype": "bfloat16"},
    {"head_dim": 32, "state_size": 128, "num_heads": 1},
    {"state_size": 24, "head_dim": 8, "conv_width": 2},
    {"conv_width": 6, "checkpoints": "all", "block_size": 4},
    {"checkpoints": "all", "conv_dtype": "bfloat16"},
    {"checkpoints": "align", "dt_limits": (0.1, 0.7)},
    {"norm": "after", "norm_eps": 1e-5},
    {"norm": "before", "norm_eps": 1e-5, "norm_groups": 2},
    {"activation": "identity", "head_dim": 17},
    {"activation": "identity", "norm": "after", "norm_eps": 1e-5},
]
#: Few tokens: an interpreter runs every program of every token.
SHORT = States(((1, 33), (1, 1), (3, 18), (1, 17)))
DECODE = States(tuple((1, n) for n in (1, 2, 17)))
CHUNK = States(((20, 41), (2, 2)))


def check(spec, steps, facts, move=None, steep=1.0, op=None) -> None:
    assert state_space.supports(spec, facts).accepted
    problem = drawn(cases.SUITE, spec, steps)
    problem = replace(problem, weights=replace(problem.weights, a=problem.weights.a * steep))
    check_caches(problem, op or state_space.StateSpace(spec, facts), facts, move)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), SHORT, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", [DECODE, CHUNK], ids=["decode", "chunk"])
def test_steps(facts: DeviceFacts, steps: States, dtype: str) -> None:
    check(replace(NORMED, dtype=dtype, checkpoints="all"), steps, facts)


def test_a_step_leaves_the_next_one_its_counters(facts: DeviceFacts) -> None:
    op = state_space.StateSpace(NORMED, facts)
    for _ in range(2):
        check(NORMED, DECODE, facts, op=op)


def test_what_nothing_is_left_of_costs_no_digits(facts: DeviceFacts) -> None:
    """Logarithms of what is left add up to thousands, and neighbors differ by a little."""
    check(SPEC, CHUNK, facts, steep=50.0)


def test_a_token_among_prompts_is_a_token_among_tokens(facts: DeviceFacts) -> None:
    """Others of a step change none of its results."""
    alone, among = (drawn(cases.SUITE, NORMED, States(((1, 30), n))) for n in ((1, 41), (20, 41)))
    among = replace(
        among, weights=alone.weights, conv=[alone.conv[0], among.conv[1]],
        ssm=[alone.ssm[0], among.ssm[1]],
    )  # fmt: skip
    among.projected[0] = alone.projected[0]
    rows = []
    for problem in (alone, among):
        op = state_space.StateSpace(NORMED, facts)
        got = problem.call(op, lambda t, written=False: t.to(facts.device, copy=True))
        rows.append(got["out"][0])
    assert torch.equal(*rows)


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    for steps in (DECODE, CHUNK):
        check(replace(SPEC, num_heads=1), steps, facts, far_apart)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = state_space.StateSpace(SPEC, facts)
    nothing = torch.empty(0, sum(SPEC.sections), device=facts.device)
    assert op(nothing, (nothing, nothing), None, None).shape == (0, SPEC.inner_size)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "gelu"}, "activation gelu is not one of silu, identity"),
        ({"norm": "twice"}, "norm twice is not one of none, after, before"),
        ({"state_size": 512}, "state_size 512 is above 256"),
        ({"norm": "after", "norm_groups": 4}, "parts of 8 channels, normed each on its own, cut"),
        ({"dtype": "int8"}, "element type int8 is not one of"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    verdict = state_space.supports(replace(SPEC, **changes), device_facts("sm_90"))
    assert not verdict.accepted and reason in verdict.reason
