"""The gated delta rule against the recurrence in float64: kinds of states, steps, far rows."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.triton.conftest import check_caches, device_facts, drawn, far_apart

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata
from hotshoe_conformance.cases import gated_delta as cases
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.cases.states import States
from hotshoe_triton import gated_delta
from hotshoe_triton.device import arch_of

SPEC = cases.BASE
VARIANTS = [{}, *cases.VARIATIONS, {"conv_width": 6, "checkpoints": "all", "block_size": 4}]
#: Few tokens: an interpreter runs every program of every token.
SHORT = States(((1, 33), (1, 1), (3, 18), (1, 17)))
STEPS = {
    "decode": States(tuple((1, n) for n in (1, 2, 16, 17, 33))),
    "one": States(((1, 40),)),
    "prompt": States(((19, 19),)),
    "short": States(((2, 17), (2, 2), (3, 18))),
}
#: Prompts of several chunks, from the middle of one on, beside sequences with few tokens.
LONG = States(((25, 45), (1, 5), (17, 17), (gated_delta.FEW, 30)))
CHUNKED = [
    ("float32", {"checkpoints": "align"}),
    ("float32", {"decay": "channel", "checkpoints": "all", "block_size": 12}),
    ("float16", {"checkpoints": "all", "block_size": 24}),
    ("bfloat16", {"key_dim": 24, "value_dim": 40}),
    ("bfloat16", {"decay": "channel", "gate": "sigmoid"}),
]


def check(spec, steps, facts, move=None) -> None:
    assert gated_delta.supports(spec, facts).accepted
    check_caches(drawn(cases.SUITE, spec, steps), gated_delta.GatedDelta(spec, facts), facts, move)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object]) -> None:
    check(replace(SPEC, **changes), SHORT, facts)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_steps(facts: DeviceFacts, steps: States, dtype: str) -> None:
    check(replace(in_dtype(SPEC, dtype), checkpoints="all"), steps, facts)


@pytest.mark.parametrize(("dtype", "changes"), CHUNKED, ids=str)
def test_chunks(facts: DeviceFacts, dtype: str, changes: dict[str, object]) -> None:
    heads = {"num_heads": 2, "num_key_heads": 1}
    check(replace(in_dtype(SPEC, dtype), **heads, **changes), LONG, facts)


@pytest.mark.parametrize("changes", [{"decay": "channel"}, {"checkpoints": "all"}], ids=str)
def test_parts_give_the_same_bits(
    facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object]
) -> None:
    """Most of a step's tokens are of one sequence, whose state is handed from part to part."""
    heads = {"num_heads": 1, "num_key_heads": 1}
    spec = replace(in_dtype(SPEC, "bfloat16"), **heads, **changes)
    problem = drawn(cases.SUITE, spec, States(((3, 40), (60, 81), (1, 9))))
    facts, found, counted = replace(facts, compute_units=8), [], []
    for part in (0, 20):
        monkeypatch.setattr(gated_delta, "PART_TOKENS", {arch_of(facts).family: part})
        op = gated_delta.GatedDelta(spec, facts)
        parts_of = op._chunks._parts_of
        monkeypatch.setattr(
            op._chunks, "_parts_of", lambda *of, ask=parts_of: counted.append(ask(*of)) or ask(*of)
        )
        found.append(problem.call(op, lambda t, written=False: t.to(facts.device, copy=True)))
    assert [len(parts) for parts in counted] == [1, 3]
    assert counted[1][0][0] == 0 and counted[1][-1][1] == counted[0][0][1]
    for name, whole in found[0].items():
        # Blocks that nobody writes hold NaN.
        torch.testing.assert_close(found[1][name], whole, rtol=0, atol=0, equal_nan=True)


def test_parts_are_for_one_long_sequence(
    facts: DeviceFacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_delta, "PART_TOKENS", {arch_of(facts).family: 8})

    def count(longest: int, tokens: int, units: int = 8, **changes: object) -> int:
        spec = replace(in_dtype(SPEC, "bfloat16"), num_heads=2, num_key_heads=1, **changes)
        chunks = gated_delta.Chunks(spec, replace(facts, compute_units=units))
        step = AttentionMetadata(2, *[torch.empty(0)] * 4, longest, longest)
        return len(chunks._parts_of(9, tokens, step))

    assert count(17, 32) == 4
    assert count(16, 32) == 1  # Two sequences of which none is longer.
    assert count(7, 7) == 1
    assert count(17, 32, units=2) == 1  # Programs that carry need all.
    assert count(17, 32, state_dtype="bfloat16") == 1  # A state would be rounded between parts.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rate", [-0.001, -0.4, -3.0, -60.0])
def test_channels_of_any_decay(facts: DeviceFacts, rate: float, dtype: str) -> None:
    """From pairs of tokens that are multiplied at once to those of which each level counts."""
    heads = {"num_heads": 1, "num_key_heads": 1, "key_dim": 64}
    spec = replace(in_dtype(SPEC, dtype), decay="channel", **heads)
    problem = drawn(cases.SUITE, spec, States(((40, 50),)))
    problem.weights.a[:] = rate
    check_caches(problem, gated_delta.GatedDelta(spec, facts), facts)


def test_repeated_keys_are_solved_as_exactly(facts: DeviceFacts) -> None:
    """Powers of a system of equal keys, of which an inverse could be made, grow beyond measure."""
    spec = replace(SPEC, num_heads=2, num_key_heads=1, value_dim=32)
    source = torch.Generator().manual_seed(torch.seed() % 2**32)
    problem = cases.SUITE.problem(Setup(spec, States(((64, 64),))), source)
    problem.projected[:] = problem.projected[:1]
    # Nothing is forgotten, and all that a key finds is replaced.
    problem.projected[:, spec.conv_size + spec.inner_size :] = 20.0
    problem.weights.a[:] = -1e-6
    got = problem.call(
        gated_delta.GatedDelta(spec, facts), lambda t, written=False: t.to(facts.device, copy=True)
    )
    for name, expected in problem.expected().items():
        assert not expected.check(got[name].cpu()).message, name


def test_blocks_far_apart_need_64_bits(facts: DeviceFacts) -> None:
    check(replace(SPEC, num_heads=2, num_key_heads=1), STEPS["short"], facts, far_apart)


def test_no_tokens_are_no_launch(facts: DeviceFacts) -> None:
    op = gated_delta.GatedDelta(SPEC, facts)
    nothing = torch.empty(0, sum(SPEC.sections), device=facts.device)
    assert op(nothing, (nothing, nothing), None, None).shape == (0, SPEC.inner_size)


def test_refusals() -> None:
    facts = device_facts("sm_90")
    verdict = gated_delta.supports(replace(SPEC, key_dim=256, value_dim=256), facts)
    assert not verdict.accepted and "states of 256 x 256 exceed registers" in verdict.reason
    assert not gated_delta.supports(SPEC, replace(facts, arch="sm_10")).accepted
    assert not gated_delta.supports(replace(SPEC, decay_floor=0.0), facts).accepted
