"""Finds plugins by entry point, checks them, and answers start-up questions through their hooks.

A plugin that fails to import, or was built for another hook version, is recorded with its cause
and left out; it is never mistaken for one that is not installed. Nothing here runs per step.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pluggy

from hotshoe.errors import PluginError
from hotshoe.plugins import hookspecs
from hotshoe.suggest import did_you_mean

GROUP = "hotshoe"
_PREFIX = "hotshoe_"


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """One discovered plugin: `error` says why it is unusable, `disabled` that it was left out."""

    name: str
    distribution: str
    version: str
    hooks: tuple[str, ...] = ()
    error: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """An entry point, or a test's stand-in for one."""

    name: str
    distribution: str
    version: str
    load: Callable[[], Any]


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
        for point in found:
            self.records.append(self._add(point, point.name in skip))

    def _add(self, point: EntryPoint, disabled: bool) -> PluginRecord:
        record = (point.name, point.distribution, point.version)
        if disabled:
            return PluginRecord(*record, disabled=True)
        if self._pm.has_plugin(point.name):
            return PluginRecord(*record, error=f"another plugin is already named {point.name!r}")
        try:
            plugin = point.load()
            hooks = _check_plugin(plugin)
            self._pm.register(plugin, name=point.name)
        except Exception as error:  # a foreign module may raise anything at all
            return PluginRecord(*record, error=f"{type(error).__name__}: {error}")
        return PluginRecord(*record, hooks=hooks)

    def mapping(self, hook: str) -> dict[str, Any]:
        """Merge the mappings that a hook returns.

        Raises:
            PluginError: Two plugins give the same name, or a hook raises.
        """
        merged: dict[str, Any] = {}
        owner: dict[str, str] = {}
        for plugin, values in self._results(hook):
            for name, value in values.items():
                if name in merged:
                    raise PluginError(
                        f"plugins {owner[name]!r} and {plugin!r} both offer {name!r} "
                        f"through {hook}; disable one with --disable-plugins"
                    )
                merged[name] = value
                owner[name] = plugin
        return merged

    def pick(self, kind: str, name: str, hook: str) -> Any:
        """Return what is offered under a name.

        Raises:
            PluginError: The name is unknown; the message lists the choices and broken plugins.
        """
        offered = self.mapping(hook)
        if name not in offered:
            choices = ", ".join(sorted(offered)) or "none installed"
            hint = did_you_mean(name, offered)
            raise PluginError(
                f"unknown {kind} {name!r}{hint} (choices: {choices}){self.broken_note()}"
            )
        return offered[name]

    def broken_note(self) -> str:
        """Return a remark on the plugins that cannot be used, for a message that misses them."""
        return "".join(f"; plugin {r.name} is broken: {r.error}" for r in self.records if r.error)

    def sequence(self, hook: str, **arguments: Any) -> list[Any]:
        """Concatenate the sequences that a hook returns, in the order of plugin names."""
        return [item for _, items in self._results(hook, **arguments) for item in items]

    def owner(self, hook: str, name: str) -> str:
        """Return the distribution that offers a name through a mapping hook.

        Raises:
            PluginError: None does.
        """
        for plugin, values in self._results(hook):
            if name in values:
                return next(r.distribution for r in self.records if r.name == plugin)
        raise PluginError(f"no plugin offers {name!r} through {hook}")

    def _results(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        caller = getattr(self._pm.hook, hook)
        results = []
        for implementation in sorted(caller.get_hookimpls(), key=lambda i: i.plugin_name):
            call = {name: arguments[name] for name in implementation.argnames}
            try:
                results.append((implementation.plugin_name, implementation.function(**call)))
            except Exception as error:
                raise PluginError(
                    f"plugin {implementation.plugin_name!r} failed in {hook}: "
                    f"{type(error).__name__}: {error}"
                ) from error
        return results


def installed_entry_points() -> list[EntryPoint]:
    """List the installed plugins without importing them."""
    return [
        EntryPoint(
            point.name,
            point.dist.name if point.dist else "?",
            point.dist.version if point.dist else "?",
            point.load,
        )
        for point in importlib.metadata.entry_points(group=GROUP)
    ]


def _check_plugin(plugin: Any) -> tuple[str, ...]:
    """Return the names of a plugin's hooks; refuse misspelt hooks and other hook versions."""
    built_for = getattr(plugin, "HOTSHOE_HOOK_API", None)
    served = (hookspecs.HOOK_API - 1, hookspecs.HOOK_API)
    if built_for not in served:
        raise PluginError(
            f"built for hook API {built_for}, but this hotshoe serves {served[0]} and {served[1]}; "
            "a plugin states HOTSHOE_HOOK_API, and must match the installed hotshoe"
        )
    known = {name for name, _ in inspect.getmembers(hookspecs, inspect.isfunction)}
    hooks = tuple(sorted(name for name in dir(plugin) if name.startswith(_PREFIX)))
    for name in hooks:
        if name not in known:
            raise PluginError(f"unknown hook {name}{did_you_mean(name, known)}")
    return hooks
