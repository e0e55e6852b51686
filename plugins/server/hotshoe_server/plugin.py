"""The plugin: commands `hotshoe serve` and `hotshoe run-batch`. Imports no web library."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Add the commands."""
    return {
        "serve": CommandEntry(
            "hotshoe_server.command:Serve",
            "answer OpenAI-compatible requests over HTTP",
            ("hotshoe_server.fleet", "hotshoe_server.serving", "hotshoe_server.socket_file"),
        ),
        "run-batch": CommandEntry(
            "hotshoe_server.batch:RunBatch", "answer a file of requests in OpenAI's batch form"
        ),
    }
