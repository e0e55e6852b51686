"""The plugin: names the platforms. Imports no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform, and the one that plays it on any machine."""
    return {
        "mps": "hotshoe_mps.platform:MpsPlatform",
        "mps-played": "hotshoe_mps.platform:PlayedPlatform",
    }
