"""The plugin: adds the page to the HTTP server."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_server_extensions() -> Mapping[str, str]:
    """Name the extension."""
    return {"ui": "hotshoe_ui.extension:EXTENSION"}
