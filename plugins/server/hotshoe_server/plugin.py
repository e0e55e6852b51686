"""The plugin: command `hotshoe serve`. Imports no web library."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Add the command."""
    target = "hotshoe_server.command:Serve"
    return {"serve": CommandEntry(target, "answer OpenAI-compatible requests over HTTP")}
