"""The plugin: names the ROCm platform and its tuner. Imports no kernel and no torch."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform."""
    return {"rocm": "hotshoe_rocm.platform:RocmPlatform"}


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Name the tuner."""
    return {
        "tune rocm": CommandEntry(
            "hotshoe_rocm.tune:Tune", "measure kernel configurations on this AMD GPU"
        )
    }
