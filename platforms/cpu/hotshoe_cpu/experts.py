"""Candidate `by_expert` of slot `moe`: quantized experts, one native product after the other.

Tokens are sorted by expert as core's reference does it. Each expert's matrices are those of
candidates `groups` and `widened` of slot `linear`.
"""

from __future__ import annotations

from types import ModuleType

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearOp, LinearSpec, MoeSpec, Verdict, accept, refuse
from hotshoe.slots.reference import accepts
from hotshoe.slots.reference import moe as reference
from hotshoe_cpu import groups, widened

#: Behind one call for all experts, before the reference.
SCORE = 50
#: Whoever multiplies a matrix: the first that accepts it.
PRODUCTS = (groups, widened)


def supports(spec: MoeSpec, facts: DeviceFacts) -> Verdict:
    """Accept quantized weights that meet x as it is; all else as core's reference judges it."""
    known = accepts.supports(spec, facts)
    if not known.accepted:
        return known
    reasons = []
    for name, side in (("gate_up", spec.gate_up), ("down", spec.down)):
        if side.weight is None:
            return refuse(f"{name} is not quantized")
        verdict = _product(side, facts)[1]
        if not verdict.accepted:
            return refuse(f"{name}: {verdict.reason}")
        reasons.append(f"{name}: {verdict.reason}" if verdict.reason else name)
    return accept(SCORE, f"one product after the other, {', '.join(reasons)}")


def weight_bytes(spec: LinearSpec, facts: DeviceFacts) -> int:
    """Return what a matrix takes where it is multiplied."""
    return _product(spec, facts)[0].weight_bytes(spec, facts)


def _product(spec: LinearSpec, facts: DeviceFacts) -> tuple[ModuleType, Verdict]:
    """Return who multiplies a matrix, and their verdict."""
    verdicts = [(module, module.supports(spec, facts)) for module in PRODUCTS]
    return next((found for found in verdicts if found[1].accepted), verdicts[-1])


def _linear(spec: LinearSpec, facts: DeviceFacts) -> LinearOp:
    return _product(spec, facts)[0].Linear(spec, facts)


class Moe(reference.Moe):
    """See `hotshoe.slots.MoeOp`."""

    def __init__(self, spec: MoeSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts, _linear)
