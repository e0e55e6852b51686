"""Judges one candidate on one case: is its verdict honest, its result right, and again the same?

A defect is a value, never an exception: whatever a candidate raises is named with its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate, Verdict
from hotshoe_conformance.cases.base import Problem
from hotshoe_conformance.place import Place, poisoned
from hotshoe_conformance.tolerance import Expected, bitwise


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate did with a case.

    Attributes:
        refused: Its reason, if it declined.
        defect: What is wrong, if anything.
        error: Largest error as a share of the tolerance.
        op: The operation, where it was built.
    """

    refused: str = ""
    defect: str = ""
    error: float = 0.0
    op: Any = None


class _Watch(TorchDispatchMode):
    """Notices tensor operations."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def ask(candidate: Candidate, spec: Any, facts: DeviceFacts) -> tuple[Verdict | None, str]:
    """Ask for a verdict; return it with what is wrong about it, empty for nothing.

    An honest verdict is a `Verdict`, the same one every time, found without tensors; a refusal
    says why.
    """
    with _Watch() as watch:
        try:
            verdict = candidate.supports(spec, facts)
            again = candidate.supports(spec, facts)
        except Exception as error:  # foreign code may raise anything; the cause is kept
            return None, f"supports() raised {_cause(error)}"
    if not isinstance(verdict, Verdict):
        return None, f"supports() returned {type(verdict).__name__}, not a Verdict"
    if watch.seen:
        return verdict, f"supports() used tensors ({watch.seen[0]}); it must not touch a device"
    if verdict != again:
        return verdict, f"supports() answers differently when asked again: {verdict}, {again}"
    if not verdict.accepted and not verdict.reason:
        return verdict, "supports() refuses without a reason"
    return verdict, ""


@torch.inference_mode()
def judge(
    candidate: Candidate,
    spec: Any,
    facts: DeviceFacts,
    problem: Callable[[], Problem],
    expected: Callable[[], Mapping[str, Expected]],
    poison: bool = True,
) -> Outcome:
    """Run everything on one case.

    Args:
        candidate: The candidate.
        spec: The case's specification.
        facts: The device.
        problem: Makes the inputs; called only when the candidate accepts.
        expected: Makes what must come out.
        poison: Fill memory that is taken; not where most of a very large piece stays unused.
    """
    verdict, defect = ask(candidate, spec, facts)
    if defect:
        return Outcome(defect=defect)
    assert verdict is not None
    if not verdict.accepted:
        return Outcome(refused=verdict.reason)
    try:
        op = resolve_lazy(candidate.build)(spec, facts)
    except Exception as error:
        return Outcome(defect=f"supports() says yes, but building raises {_cause(error)}")
    try:
        with poisoned() if poison else nullcontext():
            first = _run(problem(), op, Place(facts.device))
        return _check(candidate, op, spec, problem(), first, expected(), facts)
    except Exception as error:
        return Outcome(defect=f"supports() says yes, but the call raises {_cause(error)}")


def _check(
    candidate: Candidate,
    op: Any,
    spec: Any,
    problem: Problem,
    first: Mapping[str, Tensor],
    wanted: Mapping[str, Expected],
    facts: DeviceFacts,
) -> Outcome:
    place = Place(facts.device)
    worst = 0.0
    for name, expected in wanted.items():
        finding = expected.check(first[name])
        worst = max(worst, finding.error)
        if finding.message:
            return Outcome(defect=f"{name}: {finding.message}", error=worst, op=op)
    second = _run(problem, op, place)
    for name in wanted:
        if message := bitwise(second[name], first[name]).message:
            defect = f"{name}: another call with the same inputs gives another result: {message}"
            return Outcome(defect=defect, error=worst, op=op)
    defect = _memory_defect(problem, op) or _layout_defect(candidate, op, spec, facts)
    if not defect and candidate.batch_invariant:
        defect = _invariance_defect(problem, op, first, place)
    return Outcome(defect=defect, error=worst, op=op)


def _run(problem: Problem, op: Any, place: Place) -> dict[str, Tensor]:
    return {
        name: value.cpu() if isinstance(value, Tensor) else value
        for name, value in problem.call(op, place).items()
    }


def _memory_defect(problem: Any, op: Any) -> str:
    """Compare what an operation says of its memory with what its weight needs at least."""
    if not hasattr(problem, "memory_bytes"):
        return ""
    least, most = problem.memory_bytes()
    claimed = op.nbytes()
    if isinstance(claimed, int) and least <= claimed <= most:
        return ""
    return f"nbytes() says {claimed!r}; a weight of this size takes {least} to {most} bytes"


def _layout_defect(candidate: Candidate, op: Any, spec: Any, facts: DeviceFacts) -> str:
    """Compare the layout that was declared with the one that the operation reads."""
    if candidate.layout is None or candidate.layout(spec, facts) == op.layout:
        return ""
    return f"declares layout {candidate.layout(spec, facts)}, but reads {op.layout}"


def _invariance_defect(problem: Any, op: Any, whole: Mapping[str, Tensor], place: Place) -> str:
    """Compute a part alone and compare it, bit for bit, with the same part of the whole."""
    if not hasattr(problem, "alone"):
        return ""
    part, at = problem.alone()
    for name, value in _run(part, op, place).items():
        rows = whole[name][at]
        if value.shape == rows.shape and (message := bitwise(value, rows).message):
            return f"{name}: claims batch invariance, but a row alone is another: {message}"
    return ""


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
