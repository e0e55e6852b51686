"""Residual streams against float64, on every build of the kernels."""

from dataclasses import replace

import pytest
import torch
from tests.platforms.cpu.state_checks import check

from hotshoe.platform import DeviceFacts
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.cases.hyper_connection import BASE, SUITE, VARIATIONS, Streams
from hotshoe_cpu.hyper import HyperConnection, supports

#: More channels than are multiplied at once, and a number of outputs that leaves no tile whole.
VARIANTS = [*VARIATIONS, {"count": 3, "hidden_size": 2100, "mixes": False}]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_variants(facts: DeviceFacts, changes: dict[str, object], rng: torch.Generator) -> None:
    spec = replace(BASE, **changes)
    assert supports(spec, facts).accepted
    check(SUITE.problem(Setup(spec, Streams(5)), rng), HyperConnection(spec, facts))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [Streams(0), Streams(1), Streams(2, False), Streams(67)], ids=str)
def test_streams(facts: DeviceFacts, shape: Streams, dtype: str, rng: torch.Generator) -> None:
    spec = in_dtype(BASE, dtype)
    check(SUITE.problem(Setup(spec, shape), rng), HyperConnection(spec, facts))


def test_a_token_does_not_depend_on_others(facts: DeviceFacts, rng: torch.Generator) -> None:
    """Whether it is alone, in a tile of several or divided among threads, and whatever NaN does."""
    spec = replace(BASE, hidden_size=3000)
    problem, op = SUITE.problem(Setup(spec, Streams(7)), rng), HyperConnection(spec, facts)
    weights, (out, gates) = (problem.fn, problem.base, problem.scale), problem.block
    alone = op(problem.streams[:1], (out[:1], gates[:1]), *weights)
    problem.streams[3] = torch.nan
    for one, all_ in zip(alone, op(problem.streams, problem.block, *weights), strict=True):
        assert torch.equal(all_[:1], one) and all_[3].isnan().all()
        assert not all_[[0, 1, 2, 4, 5, 6]].isnan().any()


def test_refusals(facts: DeviceFacts) -> None:
    for changes, reason in (
        ({"iterations": 0}, "mixes streams at least once, not 4 of them 0 times"),
        ({"dtype": "float64"}, "float64"),
    ):
        verdict = supports(replace(BASE, **changes), facts)
        assert not verdict.accepted and reason in verdict.reason
