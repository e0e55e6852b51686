"""What a candidate says of itself as data, and the refusal that follows. Free of torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hotshoe.lazy import resolve_lazy
from hotshoe.platform import DeviceFacts
from hotshoe.slots.verdict import Verdict, refuse

if TYPE_CHECKING:
    from hotshoe.slots.base import Candidate


@dataclass(frozen=True, slots=True)
class Requires:
    """What a candidate needs of a device and its host.

    Attributes:
        archs: The architectures that it was made for; empty for any.
        features: Names that the device's facts have to hold.
        memory_bytes, compute_units: The least of each.
        modules: Python modules that have to be installed.
    """

    archs: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    memory_bytes: int = 0
    compute_units: int = 0
    modules: tuple[str, ...] = ()

    def shortfall(self, facts: DeviceFacts) -> str:
        """Return the missing requirement in words; "" if the device has them all."""
        if self.archs and facts.arch not in self.archs:
            return f"architecture {facts.arch} is none of {', '.join(sorted(self.archs))}"
        if lacking := self.features - facts.features:
            return f"the device lacks {', '.join(sorted(lacking))}"
        for name in ("memory_bytes", "compute_units"):
            least, found = getattr(self, name), getattr(facts, name)
            if found < least:
                return f"{name} is {found}, below {least}"
        absent = [name for name in self.modules if find_spec(name.partition(".")[0]) is None]
        return f"module {absent[0]} is not installed" if absent else ""


def judged_by_claims(
    candidate: Candidate, features: Callable[[Any], frozenset[str]] | None
) -> Callable[[Any, DeviceFacts], Verdict]:
    """Return what judges by the claims first, and asks the candidate if they suffice.

    Args:
        candidate: Lists its features and requirements.
        features: Names those that a specification asks for; None where none are listed.
    """

    def supports(spec: Any, facts: DeviceFacts) -> Verdict:
        missing = features(spec) - candidate.features if features is not None else ()
        if missing:
            return refuse(f"it does not list {', '.join(sorted(missing))} among its features")
        shortfall = candidate.requires.shortfall(facts) if candidate.requires else ""
        if shortfall:
            return refuse(shortfall)
        verdict: Verdict = resolve_lazy(candidate.supports)(spec, facts)
        return verdict

    return supports
