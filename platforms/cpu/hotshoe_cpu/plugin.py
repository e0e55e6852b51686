"""The plugin: names the CPU platform. Imports no kernel and no torch."""

from collections.abc import Mapping

from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform."""
    return {"cpu": "hotshoe_cpu.platform:CpuPlatform"}
