"""The plugin: names the XPU platform. Imports no kernel and no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform."""
    return {"xpu": "hotshoe_xpu.platform:XpuPlatform"}
