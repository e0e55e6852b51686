"""Judges one candidate on one case: is its verdict honest, its result right, and again the same?

A defect is a value, never an exception: whatever a candidate raises is named with its cause.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hotshoe.foreign import ForeignError, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots import SLOTS, Candidate, Verdict
from hotshoe_conformance.cases.base import Problem
from hotshoe_conformance.place import Place, poisoned
from hotshoe_conformance.tolerance import Expected, bitwise

#: A verdict is a few comparisons; even a busy machine gives one in this time.
SLOW_S = 0.5
HOARD_CALLS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a candidate did with a case.

    Attributes:
        refused: Its reason, if it declined.
        left_out: Why the case could not be run here, if so.
        defect: What is wrong, if anything.
        error: Largest error as a share of the tolerance.
    """

    refused: str = ""
    left_out: str = ""
    defect: str = ""
    error: float = 0.0


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
    begin = time.perf_counter()
    with _Watch() as watch:
        try:
            with foreign():
                verdict = candidate.ask(spec, facts)
                middle = time.perf_counter()
                again = candidate.ask(spec, facts)
        except ForeignError as failed:
            return None, f"supports() raised {cause(failed)}"
    if not isinstance(verdict, Verdict):
        return None, f"supports() returned {type(verdict).__name__}, not a Verdict"
    seconds = min(middle - begin, time.perf_counter() - middle)
    if seconds > SLOW_S:
        return verdict, f"supports() takes {seconds:.1f} s, each time; it is asked by every layer"
    if watch.seen:
        return verdict, f"supports() used tensors ({watch.seen[0]}); it must not touch a device"
    if verdict != again:
        return verdict, f"supports() answers differently when asked again: {verdict}, {again}"
    if not verdict.accepted and not verdict.reason:
        return verdict, "supports() refuses without a reason"
    return verdict, ""


def ask_outcome(candidate: Candidate, spec: Any, facts: DeviceFacts) -> Outcome | None:
    """Return what becomes of a case whose specification is not accepted, None if it is."""
    verdict, defect = ask(candidate, spec, facts)
    if defect:
        return Outcome(defect=defect)
    assert verdict is not None
    return None if verdict.accepted else Outcome(refused=verdict.reason)


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
        poison: Fill memory that is taken; not where most of a large piece stays unused.
    """
    outcome = ask_outcome(candidate, spec, facts)
    if outcome is not None:
        return outcome
    try:
        with foreign():
            op = resolve_lazy(candidate.build)(spec, facts)
    except ForeignError as failed:
        return Outcome(defect=f"supports() says yes, but building raises {cause(failed)}")
    try:
        with foreign():
            place = Place(facts.device)
            outcome, first = call_twice(op, problem(), expected(), place, poison)
            defect = outcome.defect or _memory_defect(problem(), op)
            defect = defect or _state_defect(problem(), op, place)
            defect = defect or _layout_defect(candidate, op, spec, facts)
            if not defect and candidate.batch_invariant:
                defect = _invariance_defect(problem(), op, first, place)
            if not defect and candidate.tolerance < 1:
                claimed = (outcome, first)
                defect = _claim_defect(candidate, spec, facts, problem(), claimed)
            return replace(outcome, defect=defect)
    except ForeignError as failed:
        return Outcome(defect=f"supports() says yes, but the call raises {cause(failed)}")


@torch.inference_mode()
def hoard(candidate: Candidate, spec: Any, facts: DeviceFacts, problem: Problem) -> str:
    """Call an operation that is right some times more; say so if it holds on to every call."""
    try:
        with foreign():
            op, place = resolve_lazy(candidate.build)(spec, facts), Place(facts.device)
            _call(op, problem, place, 1)  # what it keeps of this one, the others may share
            before = _living_tensors()
            _call(op, problem, place, HOARD_CALLS)
            kept = _living_tensors() - before
            if kept >= HOARD_CALLS:  # some may wait for the collector
                gc.collect()
                kept = _living_tensors() - before
    except ForeignError as failed:
        return f"a later call raises {cause(failed)}"
    return f"{HOARD_CALLS} calls left {kept} tensors behind" if kept >= HOARD_CALLS else ""


def _call(op: Any, problem: Problem, place: Place, count: int) -> None:
    for _ in range(count):
        problem.call(op, place)
        place.spoil()


def _living_tensors() -> int:
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


def call_twice(
    op: Any, problem: Problem, wanted: Mapping[str, Expected], place: Place, poison: bool = True
) -> tuple[Outcome, Mapping[str, Tensor]]:
    """Call an operation, compare what came out, and what comes out of a second call.

    Both calls are made before anything is compared: where ranks compute together, one that finds
    a defect must not leave the others waiting. Returns the first call's outputs, too.
    """
    with poisoned() if poison else nullcontext():
        lent = problem.call(op, place)
    first = _on_host(lent)
    overrun = place.overrun()
    place.spoil()
    found = problem.call(op, place)
    second = _on_host(found)
    place.spoil()
    worst = 0.0
    for name, expected in wanted.items():
        finding = expected.check(first[name])
        worst = max(worst, finding.error)
        if finding.message:
            return Outcome(defect=f"{name}: {finding.message}", error=worst), first
    if overrun:
        return Outcome(defect=f"it writes where it must not: {overrun}", error=worst), first
    for name in wanted:
        if lent[name].numel() and lent[name].is_set_to(found[name]):
            defect = f"{name}: another call returns the memory of the first one's result"
            return Outcome(defect=defect, error=worst), first
        if message := bitwise(second[name], first[name]).message:
            defect = f"{name}: another call with the same inputs gives another result: {message}"
            return Outcome(defect=defect, error=worst), first
    return Outcome(error=worst), first


def _on_host(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy what came out, so that nothing which happens later changes it."""
    return {
        name: value.to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in outputs.items()
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


def _state_defect(problem: Problem, op: Any, place: Place) -> str:
    """Load and call once more, and see whether what is held stayed where it lay."""
    if not hasattr(op, "state"):
        return ""
    before = dict(op.state())
    problem.call(op, place)
    place.spoil()
    after = op.state()
    if not before or before.keys() != after.keys():
        return f"state() has {sorted(before)}, after another load() {sorted(after)}"
    moved = [name for name, held in before.items() if not _same_memory(held, after[name])]
    if moved:
        return f"another load() moves {', '.join(moved)}, so that recordings read old values"
    size = sum(held.nbytes for held in after.values())
    return "" if size == op.nbytes() else f"state() has {size} bytes, nbytes() says {op.nbytes()}"


def _same_memory(one: Tensor, other: Tensor) -> bool:
    if one is other:
        return True
    try:
        return one.data_ptr() == other.data_ptr()
    except RuntimeError:  # a device without addresses: nothing can be told of it
        return True


def _layout_defect(candidate: Candidate, op: Any, spec: Any, facts: DeviceFacts) -> str:
    """Compare the layout that was declared with the one that the operation reads."""
    if candidate.layout is None:
        return ""
    try:
        with foreign():
            declared = candidate.declared_layout(spec, facts)
    except ForeignError as failed:
        return f"layout() raises {cause(failed)}"
    return "" if declared == op.layout else f"declares layout {declared}, but reads {op.layout}"


def _invariance_defect(problem: Any, op: Any, whole: Mapping[str, Tensor], place: Place) -> str:
    """Compute a part alone and compare it, bit for bit, with the same part of the whole."""
    if not hasattr(problem, "alone"):
        return ""
    part, at = problem.alone()
    for name, value in _on_host(part.call(op, place)).items():
        rows = whole[name][at]
        if value.shape == rows.shape and (message := bitwise(value, rows).message):
            return f"{name}: claims batch invariance, but a row alone is another: {message}"
    return ""


def _claim_defect(
    candidate: Candidate,
    spec: Any,
    facts: DeviceFacts,
    problem: Problem,
    claimed: tuple[Outcome, Mapping[str, Tensor]],
) -> str:
    """Compare an error with the one that is claimed; where none is, bits with the reference's."""
    outcome, found = claimed
    if candidate.tolerance:
        if outcome.error <= candidate.tolerance:
            return ""
        return f"claims a tolerance of {candidate.tolerance:g}, but errs by {outcome.error:.3g}"
    op = resolve_lazy(SLOTS[candidate.slot].reference)(spec, facts)
    wanted = _on_host(problem.call(op, Place(facts.device)))
    for name, value in wanted.items():
        if message := bitwise(found[name], value).message:
            return f"{name}: claims the reference's bits, but {message}"
    return ""


def cause(failed: ForeignError) -> str:
    """Return the first line of what foreign code raised: kernels append long traces to it."""
    error = failed.__cause__
    return f"{type(error).__name__}: {error}".splitlines()[0]
