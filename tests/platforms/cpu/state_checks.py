"""Checks of kernels against results in float64, on fresh random inputs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from hotshoe_conformance.cases.base import Problem, Setup, Suite
from hotshoe_conformance.cases.states import StateProblem, States

#: Steps of new and resumed sequences: single tokens, prompts, prompts beside single tokens.
STEPS = {
    "decode": States(tuple((1, n) for n in (1, 2, 16, 17, 33))),
    "prompt": States(((53, 53),)),
    "resumed": States(((16, 48), (2, 17), (33, 40))),
    "mixed": States(((1, 33), (19, 19), (1, 1), (2, 2), (3, 18), (40, 77), (1, 16))),
}


def draw(suite: Suite, spec: Any, steps: States, rng: torch.Generator) -> StateProblem:
    """Draw the inputs of a step over states."""
    problem = suite.problem(Setup(spec, steps), rng)
    assert isinstance(problem, StateProblem)
    return problem


def check(problem: Problem, op: Any, place: Any = None) -> None:
    """Compare results, which lie where NaN was, and caches; other blocks stay as they were."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", poisoned)
        got = problem.call(op, place or apart)
    for name, expected in problem.expected().items():
        finding = expected.check(got[name])
        assert not finding.message, f"{name}: {finding.message}"


def poisoned(*size: int, dtype: torch.dtype) -> Tensor:
    """Return NaN where an operation asks for memory."""
    return torch.full(size, float("nan"), dtype=dtype)


def apart(tensor: Tensor, written: bool = False) -> Tensor:
    """Return an equal tensor; rows and blocks that are overwritten have gaps of NaN behind them."""
    if not written:
        return tensor.clone()
    wide = torch.full((len(tensor), 2, *tensor.shape[1:]), float("nan"), dtype=tensor.dtype)
    return wide[:, 0].copy_(tensor)


def check_alone(problem: StateProblem, op: Any) -> None:
    """A sequence's results do not depend on the others of its step."""
    alone, rows = problem.alone()
    assert torch.equal(problem.call(op, apart)["out"][rows], alone.call(op, apart)["out"])


def check_recorded(problem: StateProblem, op: Any, native: Any) -> None:
    """A call's repetition reads the states that the caches hold then, and gives the same. A
    rehearsal gives the same as well, and leaves the states."""
    call, caches = problem._bind(op, apart)
    before = [cache.clone() for cache in caches]
    native.rehearse(True)
    rehearsed = call().clone()
    native.rehearse(False)
    for cache, old in zip(caches, before, strict=True):
        torch.testing.assert_close(cache, old, rtol=0, atol=0, equal_nan=True)
    native.record_begin()
    out = call()
    calls = native.record_end()
    wanted = [out.clone(), *(cache.clone() for cache in caches)]
    torch.testing.assert_close(rehearsed, out, rtol=0, atol=0, equal_nan=True)
    out.fill_(float("nan"))
    for cache, old in zip(caches, before, strict=True):
        cache.copy_(old)
    native.record_replay(calls)
    for found, expected in zip((out, *caches), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
