"""Imports what the commands need that a keeper forks."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from hotshoe.cli.keeper.place import COMMANDS
from hotshoe.lazy import resolve_lazy
from hotshoe.plugins import PluginManager

#: Of every engine, and of what starts it.
MODULES = (
    "hotshoe.engine.api.async_engine",
    "hotshoe.engine.api.llm",
    "hotshoe.engine.transport.child",
    "hotshoe.engine.transport.process",
    "hotshoe.runner.worker",
)


def import_commands(plugins: PluginManager) -> None:
    """Import what commands need that start engines; one that lacks a package says so itself."""
    commands = plugins.mapping("hotshoe_commands")
    for entry in (commands[name] for name in COMMANDS if name in commands):
        with suppress(ImportError):
            resolve_lazy(entry.target)
            for name in entry.imports:
                import_module(name)
    for name in MODULES:
        import_module(name)
