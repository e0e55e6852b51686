"""The oracle as a platform: core's references on the host, in float32. Offered by the kit alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe.platform import Available, DeviceFacts, Platform
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points

PLATFORM = "conformance-host"


class Host(Platform):
    """Ordinary memory and no kernel."""

    name = PLATFORM

    def probe(self) -> Available:
        return Available(score=-1)

    def facts(self) -> DeviceFacts:
        return DeviceFacts(PLATFORM, "cpu", "core's references", "any", 1 << 29, 1)


class _Plugin:
    HOTSHOE_HOOK_API = 2

    @hookimpl
    def hotshoe_platforms(self) -> Mapping[str, Any]:
        return {PLATFORM: Host}


def host_plugins() -> PluginManager:
    """Return what is installed, and the host platform."""
    own = EntryPoint(PLATFORM, "hotshoe-conformance", "", _Plugin)
    return PluginManager([*installed_entry_points(), own])
