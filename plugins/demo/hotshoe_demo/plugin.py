"""The plugin: gives the bundled checkpoint the name `demo`. Reads no file and imports no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl
from hotshoe_demo import MODEL

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_named_models() -> Mapping[str, str]:
    """Name the model directory."""
    return {"demo": str(MODEL)}
