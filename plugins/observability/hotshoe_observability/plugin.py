"""The plugin: extends the HTTP server. Imports no metrics and no tracing library."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_server_extensions() -> Mapping[str, str]:
    """Name the extension."""
    return {"observability": "hotshoe_observability.extension:EXTENSION"}
