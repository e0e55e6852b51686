"""The plugin: which slots this distribution brings. Imports no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_slots() -> Mapping[str, str]:
    """Name the slot."""
    return {"squared_relu": "hotshoe_squared_relu.slot:SLOT"}
