"""What this machine can prove for each target of each platform: run, simulated, cross-compiled, or
not at all. Everything comes from what platforms declare; nothing is run.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotshoe.cli.table import table
from hotshoe.foreign import ForeignError, foreign
from hotshoe.lazy import resolve_lazy
from hotshoe.platform import Absent, Available, Broken, Platform, PlatformStatus, Proof, Target
from hotshoe.plugins import PluginManager
from hotshoe.plugins.platforms import HOOK, list_platforms, targets_of

RUN, NOTHING = "run", "not at all"


@dataclass(frozen=True, slots=True)
class Line:
    """One way to prove one target here, or that there is none.

    Attributes:
        proof: "run", "simulated", "cross-compiled" or "not at all".
        how: The command, or what is missing.
    """

    platform: str
    target: str
    proof: str
    how: str

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)


def matrix(plugins: PluginManager) -> list[Line]:
    """Look at every installed platform."""
    found = []
    for status in list_platforms(plugins):
        try:
            with foreign():
                platform: Platform = resolve_lazy(plugins.mapping(HOOK)[status.name])()
                targets_of(platform)
        except ForeignError as failed:
            found.append(Line(status.name, "", NOTHING, str(failed)))
            continue
        found += _platform_lines(platform, status)
    return found


def _platform_lines(platform: Platform, status: PlatformStatus) -> Iterator[Line]:
    name, here = status.name, status.facts
    known = [t for t in platform.targets if here is not None and matches(t, status)]
    if here is not None and not known:
        yield Line(name, f"{here.name} (undeclared)", RUN, _command(name))
    if here is None and not platform.targets:
        yield Line(name, "(declares no target)", NOTHING, _why_not(status))
    for target in platform.targets:
        lines = list(_proofs(name, target, target in known))
        missing = "; ".join([_why_not(status), *map(_missing, target.proofs)])
        yield from lines or [Line(name, target.name, NOTHING, missing)]


def matches(target: Target, status: PlatformStatus) -> bool:
    """Tell whether the device that was found is (also) this target."""
    here = status.facts
    return here is not None and here.arch == target.facts.arch and target.requires <= here.features


def _proofs(platform: str, target: Target, is_here: bool) -> Iterator[Line]:
    if is_here:
        yield Line(platform, target.name, RUN, _command(platform, target.options))
    for proof in target.proofs:
        if not _missing(proof):
            yield Line(platform, target.name, proof.kind, proof.command)


def _command(platform: str, options: str = "") -> str:
    return f"hotshoe conformance --platform {platform} {options}".strip()


def _missing(proof: Proof) -> str:
    """Say what a proof lacks here, empty for nothing."""
    absent = [f"module {m}" for m in proof.modules if importlib.util.find_spec(m) is None]
    absent += [f"program {p}" for p in proof.executables if shutil.which(p) is None]
    return f"{proof.kind} needs {' and '.join(absent)}" if absent else ""


def _why_not(status: PlatformStatus) -> str:
    match status.detection:
        case Absent(reason):
            return reason
        case Broken(cause):
            return cause
        case Available():
            return "the device here is another one"


def as_text(lines: Sequence[Line]) -> str:
    """Return the matrix for people."""
    rows = [(x.platform, x.target, x.proof, x.how) for x in lines]
    return table(("platform", "target", "proof here", "how, or what is missing"), rows)
