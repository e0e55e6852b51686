"""Imports what the commands need that a keeper forks."""

from __future__ import annotations

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
    """Import what commands need that start engines."""
    commands = plugins.mapping("hotshoe_commands")
    known = [commands[name] for name in COMMANDS if name in commands]
    for entry in known:
        resolve_lazy(entry.target)
    for name in (*MODULES, *(module for entry in known for module in entry.imports)):
        import_module(name)
