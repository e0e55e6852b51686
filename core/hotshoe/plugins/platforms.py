"""Finds the platforms that plugins name, probes them, and chooses one.

Detection has three outcomes. A broken platform is reported as such; it is never skipped in favor
of another one without being asked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from hotshoe.errors import PlatformError, PluginError, UserError
from hotshoe.foreign import ForeignError, cause_of, foreign, place_of
from hotshoe.lazy import resolve_lazy
from hotshoe.patience import patience
from hotshoe.platform import (
    Absent,
    Available,
    Broken,
    Detection,
    DeviceFacts,
    Platform,
    PlatformStatus,
    Target,
)
from hotshoe.plugins.manager import PluginManager

if TYPE_CHECKING:
    from hotshoe.slots import Candidate

HOOK = "hotshoe_platforms"
_log = logging.getLogger(__name__)
T = TypeVar("T")
NONE: Mapping[str, str] = MappingProxyType({})


def usable_platforms(plugins: PluginManager) -> list[str]:
    """Return the names of the platforms that plugins offer, sorted."""
    return sorted(plugins.mapping(HOOK))


def list_platforms(
    plugins: PluginManager, deadly: Mapping[str, str] = NONE
) -> list[PlatformStatus]:
    """Probe every platform that a plugin names; one that cannot say its name has its plugin's.

    Args:
        plugins: All of this process.
        deadly: Platforms that must not be asked, and why; they are shown as broken.
    """
    found = [
        PlatformStatus(name, plugins.owner(HOOK, name).distribution, Broken(deadly[name]))
        if name in deadly
        else status_of(plugins, name)
        for name in usable_platforms(plugins)
    ]
    return found + [
        PlatformStatus(record.name, record.distribution, Broken(f"its plugin: {record.error}"))
        for record in plugins.broken(HOOK)
    ]


def choose_platform(plugins: PluginManager, name: str) -> Platform:
    """Return the named platform, or for "auto" the available one with the highest score.

    Only the named platform is imported. Scores below zero are chosen by name alone. A broken
    platform is passed over for one whose score is higher, with a warning.

    Raises:
        PluginError: The name is unknown.
        PlatformError: It is absent or broken; or automatic choice finds none, or a broken one.
    """
    if name != "auto":
        return _named(plugins, name)
    probed = {n: _probe(plugins, n) for n in sorted(plugins.mapping(HOOK))}
    best = max((d.score for _, d in probed.values() if isinstance(d, Available)), default=-1)
    broken = {n: d.cause for n, (_, d) in probed.items() if isinstance(d, Broken)}
    for name, (_, d) in probed.items():
        if isinstance(d, Broken) and d.score is not None and d.score < best:
            _log.warning("platform %s is broken, and a better one is here: %s", name, d.cause)
            del broken[name]
    broken |= plugins.conflicts(HOOK)
    broken |= {f"plugin {r.name} is broken": str(r.error) for r in plugins.broken(HOOK)}
    if broken:
        causes = "; ".join(f"{n}: {cause}" for n, cause in sorted(broken.items()))
        raise PlatformError(f"{causes}. Mend it, or choose another with --platform NAME")
    scores = [
        (-d.score, n) for n, (_, d) in probed.items() if isinstance(d, Available) and d.score >= 0
    ]
    if not scores:
        reasons = [
            f"{n}: {d.reason if isinstance(d, Absent) else f'by name alone, --platform {n}'}"
            for n, (_, d) in probed.items()
        ]
        raise PlatformError(
            f"no platform is usable here ({'; '.join(reasons) or 'none is installed'}); "
            f"install one, such as hotshoe-platform-cpu{plugins.broken_note()}"
        )
    platform = probed[min(scores)[1]][0]
    assert platform is not None
    return platform


def troubles(plugins: PluginManager) -> list[str]:
    """Say which plugins may have brought a platform, but cannot, and which names are contested."""
    broken = [f"plugin {r.name} is broken: {r.error}" for r in plugins.records if r.error]
    return [*broken, *plugins.conflicts(HOOK).values()]


def facts_of(platform: Platform) -> DeviceFacts:
    """Return a platform's facts.

    Raises:
        TypeError: They are none.
    """
    return checked(platform.facts(), DeviceFacts, "facts() returned")


def targets_of(platform: Platform) -> Sequence[Target]:
    """Return a platform's targets.

    Raises:
        TypeError: One of them is none.
    """
    return [checked(target, Target, "targets holds") for target in platform.targets]


def checked(found: object, kind: type[T], lead: str) -> T:
    """Return what a platform supplied.

    Args:
        lead: How it was supplied, such as `facts() returned`.

    Raises:
        TypeError: It is of another type than the contract says.
    """
    if not isinstance(found, kind):
        raise TypeError(f"{lead} {type(found).__name__}, not {kind.__name__}")
    return found


@contextmanager
def blaming(platform: str) -> Iterator[None]:
    """Name the platform whose code fails, whatever it raises, or takes long.

    Raises:
        PlatformError: It failed in a way that is not a user's mistake.
    """

    def blame(error: BaseException) -> PlatformError:
        return PlatformError(
            f"platform {platform} is defective: {cause_of(error)}{place_of(error)}; "
            "choose another with --platform NAME, or mend it"
        )

    with foreign(blame, (UserError,)), patience(f"platform {platform}"):
        yield


def candidates_of(platform: Platform, plugins: PluginManager) -> list[Candidate]:
    """Return what a platform and the kernel packs beside it offer.

    Each candidate knows its package, and the hook version that this was built for, so that it is
    not asked about what came later.

    Raises:
        PluginError: Something else than a candidate is offered.
    """
    offers = list(platform.candidates())
    own = [(plugins.owner(HOOK, platform.name), candidate) for candidate in offers]
    packs = plugins.sequence("hotshoe_candidates", platform=platform.name)
    for record, candidate in own + packs:
        if not hasattr(candidate, "hook_api"):
            raise PluginError(f"plugin {record.name} offers {candidate!r}, which is no Candidate")
    return [
        replace(candidate, hook_api=r.hook_api, package=f"{r.distribution} {r.version}")
        for r, candidate in own + packs
    ]


def _named(plugins: PluginManager, name: str) -> Platform:
    plugins.pick("platform", name, HOOK)
    platform, detection = _probe(plugins, name)
    if isinstance(detection, Absent):
        raise PlatformError(f"platform {name} is not usable here: {detection.reason}")
    if isinstance(detection, Broken):
        raise PlatformError(f"platform {name} is broken: {detection.cause}")
    assert platform is not None
    return platform


def _probe(plugins: PluginManager, name: str) -> tuple[Platform | None, Detection]:
    """Import and probe one platform; whatever goes wrong is that platform's defect."""
    try:
        with foreign(), patience(f"platform {name}"):
            platform: Platform = resolve_lazy(plugins.mapping(HOOK)[name])()
            detection = platform.probe()
        if not isinstance(detection, Detection):
            return None, Broken(f"probe() returned {type(detection).__name__}, not a detection")
        if platform.name != name:
            return None, Broken(f"it calls itself {platform.name!r}; its plugin names it {name!r}")
        return platform, detection
    except ForeignError as failed:
        return None, Broken(str(failed))


def status_of(plugins: PluginManager, name: str) -> PlatformStatus:
    """Probe one platform."""
    platform, detection = _probe(plugins, name)
    owner = plugins.owner(HOOK, name).distribution
    facts = None
    if platform is not None and isinstance(detection, Available):
        try:
            with foreign():
                facts = facts_of(platform)
        except ForeignError as failed:
            detection = Broken(f"facts() failed: {failed}")
    return PlatformStatus(name, owner, detection, facts)
