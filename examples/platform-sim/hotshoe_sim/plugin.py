"""The plugin: names the platform. Imports no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform."""
    return {"sim": "hotshoe_sim.platform:SimPlatform"}
