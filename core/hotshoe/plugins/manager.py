"""Finds plugins by entry point, checks them, and answers start-up questions through their hooks.

A plugin that fails to import, was built for another hook version, or fails in a hook is recorded
with its cause and left out; it is never mistaken for one that is not installed, and never stops the
others. A name that two plugins offer is nobody's until one is disabled, but for names of core and
of a platform in its own package. Nothing runs per step.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pluggy

from hotshoe import __version__
from hotshoe.deprecation import deprecated
from hotshoe.errors import HotshoeError, PluginError
from hotshoe.foreign import ForeignError, cause_of, foreign, place_of
from hotshoe.plugins import hookspecs
from hotshoe.suggest import did_you_mean

GROUP = "hotshoe"
_PREFIX = "hotshoe_"
_HOME = "hotshoe-"
CORE = "hotshoe"
#: That an error lists; of hundreds of architectures, nobody would find its end.
MOST_CHOICES = 40
#: Which distribution offers the usual things through a hook, for those who have none.
USUAL = {
    "hotshoe_executors": "hotshoe-executor-ray",
    "hotshoe_heads": "hotshoe-models",
    "hotshoe_model_impls": "hotshoe-models",
    "hotshoe_models": "hotshoe-models",
    "hotshoe_proposers": "hotshoe-speculation",
    "hotshoe_quantizations": "hotshoe-quantization",
    "hotshoe_weight_formats": "hotshoe-quantization",
}
#: What the values of a mapping are, where they are not objects or text that says where one lies.
VALUES: Mapping[str, Callable[[Any], bool]] = {
    "hotshoe_commands": lambda value: hasattr(value, "target") and hasattr(value, "help"),
    "hotshoe_encoders": lambda value: type(value) is int and value >= 0,
    "hotshoe_model_lengths": lambda value: type(value) is int and value > 0,
    "hotshoe_named_models": lambda value: isinstance(value, (str, os.PathLike)),
}


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One discovered plugin.

    Attributes:
        hooks: Hooks that it implements; empty too where it could not be imported.
        error: Why it is unusable, if it is.
        disabled: It was left out on demand.
        warning: What will make it unusable in a later version.
        hook_api: The last hook version that it was built for; None where it is unusable.
    """

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    error: str | None = None
    disabled: bool = False
    warning: str | None = None
    hook_api: int | None = None


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """An entry point, or a test's stand-in for one."""

    name: str
    distribution: str
    version: str
    load: Callable[[], Any]
    module: str = ""

    @property
    def reserved(self) -> bool:
        """Whether the name belongs to its distribution, as names of Hotshoe's own packages do."""
        own = {CORE, f"{_HOME}{self.name}", f"{_HOME}platform-{self.name}"}
        return self.distribution in own

    def may_offer(self, hook: str) -> bool:
        """Whether its module, which is not imported, may implement a hook: its text names it."""
        text = _source_of(self.module)
        return text is None or hook in text


class PluginManager:
    """All plugins of this process.

    Args:
        entry_points: Where plugins come from; default: installed distributions.
        disabled: Names to leave out. An unknown name is an error.
    """

    def __init__(
        self, entry_points: Iterable[EntryPoint] | None = None, disabled: Iterable[str] = ()
    ) -> None:
        self._pm = pluggy.PluginManager(hookspecs.PROJECT)
        self._pm.add_hookspecs(hookspecs)
        self.records: list[PluginRecord] = []
        found = sorted(
            installed_entry_points() if entry_points is None else entry_points,
            key=lambda point: (point.name, point.distribution),
        )
        skip = set(disabled)
        names = [point.name for point in found]
        for name in sorted(skip.difference(names)):
            hint = did_you_mean(name, names)
            raise PluginError(f"no plugin {name!r} to disable{hint} (plugins: {', '.join(names)})")
        self._points = {(point.name, point.distribution): point for point in found}
        for point in found:
            rivals = [p for p in found if p.name == point.name and p is not point]
            self.records.append(self._add(point, point.name in skip, rivals))

    def _add(self, point: EntryPoint, disabled: bool, rivals: Sequence[EntryPoint]) -> PluginRecord:
        record = (point.name, point.distribution, point.version)
        if disabled:
            return PluginRecord(*record, disabled=True)
        if rivals and (not point.reserved or any(rival.reserved for rival in rivals)):
            return PluginRecord(*record, error=_contested(point, rivals))
        hooks: tuple[str, ...] = ()
        try:
            with foreign():
                plugin = point.load()
                hooks = _hooks_of(plugin)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    hook_api = _check_plugin(point.name, plugin, hooks)
                    self._check_marks(plugin, hooks)
                    self._pm.register(plugin, name=point.name)
        except ForeignError as failed:
            return PluginRecord(*record, hooks, error=str(failed))
        for warning in caught:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        texts = "; ".join(str(warning.message) for warning in caught)
        return PluginRecord(*record, hooks, warning=texts or None, hook_api=hook_api)

    def _check_marks(self, plugin: Any, hooks: Sequence[str]) -> None:
        """Refuse hooks that would never be called."""
        for hook in hooks:
            if self._pm.parse_hookimpl_opts(plugin, hook) is None:
                raise PluginError(f"{hook} is not marked; put @hotshoe.plugins.hookimpl before it")

    def mapping(self, hook: str) -> dict[str, Any]:
        """Merge the mappings that a hook returns; names that two plugins offer are left out."""
        offers = self._offers(hook)
        return {name: found[0][1] for name, found in offers.items() if len(found) == 1}

    def conflicts(self, hook: str) -> dict[str, str]:
        """Return the names that two plugins offer through a hook, each with these plugins."""
        return {
            name: f"plugins {found[0][0]!r} and {found[1][0]!r} both offer {name!r} through {hook} "
            f"({self._packages(found)}); disable one with --disable-plugins"
            for name, found in self._offers(hook).items()
            if len(found) > 1
        }

    def _packages(self, offers: Sequence[tuple[str, Any]]) -> str:
        """Return the packages of those who offer something, with versions."""
        records = [self._record(plugin) for plugin, _ in offers]
        return " and ".join(f"{record.distribution} {record.version}" for record in records)

    def _offers(self, hook: str) -> dict[str, list[tuple[str, Any]]]:
        """Return who offers what under each name.

        What core offers, and the name that a plugin has itself in the distribution that the name
        belongs to, is not contested: who else offers it is warned.
        """
        offers: dict[str, list[tuple[str, Any]]] = {}
        for plugin, values in self._results(hook, Mapping):
            for name, value in values.items():
                offers.setdefault(name, []).append((plugin, value))
        for name, found in offers.items():
            home = [(plugin, value) for plugin, value in found if self._owns(plugin, name)]
            if len(home) == 1 < len(found):
                others = [plugin for plugin, _ in found if plugin != home[0][0]]
                self._warn(others, f"{name!r} belongs to {self._packages(home)}; rename yours")
                offers[name] = home
        return offers

    def _owns(self, plugin: str, name: str) -> bool:
        record = self._record(plugin)
        return record.distribution == CORE or (plugin == name and self._point(record).reserved)

    def _warn(self, plugins: Sequence[str], text: str) -> None:
        """Let the records of plugins say what is wrong with an offer of theirs, once."""
        self.records = [
            replace(r, warning="; ".join(filter(None, (r.warning, f"{r.name}: {text}"))))
            if r.name in plugins and r.error is None and text not in (r.warning or "")
            else r
            for r in self.records
        ]

    def pick(self, kind: str, name: str, hook: str, own: Mapping[str, Any] | None = None) -> Any:
        """Return what is offered under a name.

        Args:
            kind: What it is, for messages.
            name: Asked for.
            hook: Through which plugins offer such.
            own: What core has beside them, under names that no plugin can take.

        Raises:
            PluginError: The name is unknown, and the message lists the choices, if they are few,
                and broken plugins; or two plugins offer it.
        """
        offered = {**self.mapping(hook), **(own or {})}
        if conflict := self.conflicts(hook).get(name):
            raise PluginError(conflict)
        if name not in offered:
            choices = ", ".join(sorted(offered)) or _none_installed(hook)
            if len(offered) > MOST_CHOICES:
                choices = f"{len(offered)} names, which `hotshoe plugins` lists"
            hint = did_you_mean(name, offered)
            contested = "".join(f"; {conflict}" for conflict in self.conflicts(hook).values())
            raise PluginError(
                f"unknown {kind} {name!r}{hint} (choices: {choices}){contested}{self.broken_note()}"
            )
        return offered[name]

    def broken_note(self) -> str:
        """Return a remark on the plugins that cannot be used, for a message that misses them."""
        return "".join(f"; plugin {r.name} is broken: {r.error}" for r in self.records if r.error)

    def broken(self, hook: str) -> list[PluginRecord]:
        """Return the unusable plugins that implement a hook, or may, as they cannot be imported.

        A plugin whose name belongs to another is not among them: the other one serves.
        """
        return [
            r
            for r in self.records
            if r.error
            and (hook in r.hooks if r.hooks else self._point(r).may_offer(hook))
            and not any(p.reserved for p in self._rivals(r))
        ]

    def _point(self, record: PluginRecord) -> EntryPoint:
        return self._points[record.name, record.distribution]

    def _rivals(self, record: PluginRecord) -> list[EntryPoint]:
        own = self._point(record)
        return [p for p in self._points.values() if p.name == record.name and p is not own]

    def sequence(self, hook: str, **arguments: Any) -> list[tuple[PluginRecord, Any]]:
        """Concatenate the sequences that a hook returns, in the order of plugin names, with who
        offers each item."""
        results = self._results(hook, Sequence, **arguments)
        return [(self._record(name), item) for name, items in results for item in items]

    def owner(self, hook: str, name: str) -> PluginRecord:
        """Return the plugin that offers a name through a mapping hook.

        Raises:
            PluginError: None does.
        """
        for plugin, _ in self._offers(hook).get(name, ()):
            return self._record(plugin)
        raise PluginError(f"no plugin offers {name!r} through {hook}")

    def _record(self, plugin: str) -> PluginRecord:
        return next(r for r in self.records if r.name == plugin and r.error is None)

    def _results(self, hook: str, kind: type, **arguments: Any) -> list[tuple[str, Any]]:
        """Call a hook of every plugin; one that fails is recorded and left out from then on."""
        results = []
        implementations = getattr(self._pm.hook, hook).get_hookimpls()
        for implementation in sorted(implementations, key=lambda i: i.plugin_name):
            name = implementation.plugin_name
            try:
                with foreign():
                    call = {argument: arguments[argument] for argument in implementation.argnames}
                    value = implementation.function(**call)
                    if not isinstance(value, kind):
                        raise TypeError(f"it returned {type(value).__name__}")
                    if isinstance(value, Mapping):
                        _check_entries(hook, value)
            except ForeignError as failed:
                self._give_up(name, f"it failed in {hook}: {failed}")
            else:
                results.append((name, value))
        return results

    def _give_up(self, name: str, error: str) -> None:
        self._pm.unregister(name=name)
        self.records = [
            replace(r, error=error) if r.name == name and r.error is None else r
            for r in self.records
        ]


def blaming_plugin(
    plugins: PluginManager, hook: str, name: str, passing: type[BaseException] = HotshoeError
) -> foreign:
    """Name the plugin whose code fails, whatever it raises, but Hotshoe's own exceptions.

    Args:
        plugins: Whose plugin it is.
        hook: Through which the plugin offers what is used.
        name: Under which it does.
        passing: Exceptions that whoever calls answers himself.

    Raises:
        PluginError: The plugin's code failed.
    """

    def blame(error: BaseException) -> PluginError:
        owner = plugins.owner(hook, name)
        return PluginError(
            f"plugin {owner.name} ({owner.distribution} {owner.version}) is defective: "
            f"{name}: {cause_of(error)}{place_of(error)}; mend it, or do without it: "
            f"--disable-plugins {owner.name}"
        )

    return foreign(blame, (HotshoeError, passing))


def _check_entries(hook: str, values: Mapping[Any, Any]) -> None:
    """Refuse a mapping whose names are no text, or whose values are not what the hook says."""
    fits = VALUES.get(hook, lambda value: value is not None)
    for name, value in values.items():
        if not isinstance(name, str) or not fits(value):
            raise TypeError(f"it returned {value!r} under the name {name!r}")


def installed_entry_points() -> list[EntryPoint]:
    """List the installed plugins without importing them.

    Of distributions of one name the first folder of the module search path counts, as for imports.
    Two of one name in one folder, such as leftovers, are never imported: only the order of the file
    system would choose between them.
    """
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    for dist in importlib.metadata.distributions():
        if any(point.group == GROUP for point in dist.entry_points):
            found.setdefault(dist.name, []).append(dist)
    return [
        EntryPoint(point.name, name, dists[0].version, _loader(point, dists), point.module)
        for name, dists in found.items()
        for point in dists[0].entry_points
        if point.group == GROUP
    ]


def _loader(
    point: importlib.metadata.EntryPoint, dists: Sequence[importlib.metadata.Distribution]
) -> Callable[[], Any]:
    """Return what imports a plugin, or refuses one that is installed twice in one folder."""
    folder = dists[0].locate_file("")
    versions = {dist.version for dist in dists if dist.locate_file("") == folder}
    if len(versions) == 1:
        return point.load

    def refuse() -> Any:
        raise PluginError(
            f"{folder} has {' and '.join(sorted(versions))} of {dists[0].name}, and nothing says "
            f"which one is meant; uninstall it until it is gone, and install it again"
        )

    return refuse


def own_entry_points() -> list[EntryPoint]:
    """List core's own plugin alone."""
    return [point for point in installed_entry_points() if point.distribution == CORE]


def _contested(point: EntryPoint, rivals: Sequence[EntryPoint]) -> str:
    """Say why an entry point cannot have its name, and who has it."""
    others = ", ".join(sorted(rival.distribution for rival in rivals))
    if any(rival.reserved for rival in rivals):
        return f"the name {point.name!r} belongs to {others}; rename its entry point"
    return (
        f"{point.distribution} and {others} both name a plugin {point.name!r}, so neither is used; "
        "uninstall one"
    )


def _source_of(module: str) -> str | None:
    """Return the text of a module, or None if it cannot be found without importing its package."""
    package, *rest = module.split(".")
    try:
        spec = importlib.machinery.PathFinder.find_spec(package) if package else None
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    path = Path(*places[:1], *rest) if places else None
    if path is None or not rest:
        path = Path(spec.origin) if spec and spec.origin else None
    else:
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    try:
        return path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeError):
        return None


def _hooks_of(plugin: Any) -> tuple[str, ...]:
    """Return the functions that are named like hooks; its own package may be named so, too."""
    names = (name for name in dir(plugin) if name.startswith(_PREFIX))
    return tuple(sorted(name for name in names if inspect.isroutine(getattr(plugin, name))))


def _check_plugin(name: str, plugin: Any, hooks: Sequence[str]) -> int:
    """Refuse misspelt hooks and other hook versions; return the last one that it was built for.

    A plugin states the version that it was built for, or the first and the last that it knows.
    """
    stated = getattr(plugin, "HOTSHOE_HOOK_API", None)
    built_for = stated if isinstance(stated, tuple) else (stated, stated)
    served = (hookspecs.HOOK_API - 1, hookspecs.HOOK_API)
    if stated is None:
        raise PluginError(
            "it does not say for which hook API it was built; "
            f"its module states HOTSHOE_HOOK_API = {served[1]}, or the version that it knows"
        )
    if len(built_for) != 2 or not all(isinstance(version, int) for version in built_for):
        remedy = f"its module states HOTSHOE_HOOK_API = {served[1]}, or the first and the last"
        raise PluginError(_version_text(repr(stated), served, remedy))
    first, last = (int(version) for version in built_for)
    if first > served[1] or last < served[0]:
        stands = str(first) if first == last else f"{first} to {last}"
        remedy = (
            f"upgrade hotshoe to one that serves {first}"
            if first > served[1]
            else f"upgrade its package to one built for hook API {served[1]}"
        )
        raise PluginError(_version_text(stands, served, remedy))
    if last < served[1]:
        instead = f"install a version of it that is built for hook API {served[1]}"
        deprecated(f"plugin {name} for hook API {last}", instead, _next_minor())
    known = {hook for hook, _ in inspect.getmembers(hookspecs, inspect.isfunction)}
    for hook in hooks:
        if hook not in known:
            raise PluginError(f"unknown hook {hook}{did_you_mean(hook, known)}")
    return last


def _none_installed(hook: str) -> str:
    return (
        f"none installed; {USUAL[hook]} has the usual ones" if hook in USUAL else "none installed"
    )


def _version_text(built_for: str, served: tuple[int, int], remedy: str) -> str:
    return (
        f"built for hook API {built_for}, but this hotshoe ({__version__}) serves "
        f"{served[0]} and {served[1]}; {remedy}"
    )


def _next_minor() -> str:
    major, minor, *_ = __version__.split(".")
    return f"{major}.{int(minor) + 1}"
