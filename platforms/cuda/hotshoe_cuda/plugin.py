"""The plugin: names the CUDA platform. Imports no kernel and no torch."""

from collections.abc import Mapping

from hotshoe.cli.command import CommandEntry
from hotshoe.plugins import hookimpl

HOTSHOE_HOOK_API = 2


@hookimpl
def hotshoe_platforms() -> Mapping[str, str]:
    """Name the platform."""
    return {"cuda": "hotshoe_cuda.platform:CudaPlatform"}


@hookimpl
def hotshoe_commands() -> Mapping[str, CommandEntry]:
    """Name the tuner."""
    return {
        "tune cuda": CommandEntry(
            "hotshoe_cuda.tune:Tune", "measure kernel configurations on this NVIDIA GPU"
        )
    }
