"""The plugin: the kit's commands. Imports neither torch nor the kit."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2

_COMMANDS = {
    "conformance": ("command:Conformance", "prove a platform right, and measure it"),
    "new-platform": ("new_platform:NewPlatform", "write a package for a new platform"),
}


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Name the commands."""
    return {
        name: CommandEntry(f"hotshoe_conformance.{target}", text)
        for name, (target, text) in _COMMANDS.items()
    }
