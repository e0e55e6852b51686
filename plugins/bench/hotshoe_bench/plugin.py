"""The plugin: adds `hotshoe bench serve`, `agent`, `compare`, `report`. Imports no HTTP library."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Name the commands."""
    return {
        "bench serve": CommandEntry(
            "hotshoe_bench.serve:Serve", "measure a running server: latencies, throughput, goodput"
        ),
        "bench agent": CommandEntry(
            "hotshoe_bench.agent:Agent", "measure a running server under sessions of agents"
        ),
        "bench compare": CommandEntry(
            "hotshoe_bench.compare:Compare", "print two benchmark results side by side"
        ),
        "bench report": CommandEntry(
            "hotshoe_bench.page:Report", "write benchmark results as a page of HTML"
        ),
    }
