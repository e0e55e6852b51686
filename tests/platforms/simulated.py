"""A platform on a machine that does not have its device: its own candidates, the host's memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Available, Detection, DeviceFacts, MemoryBudget, Platform
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.slots import Candidate


def simulate(
    base: type[Platform], recorded: DeviceFacts, without: Collection[str]
) -> tuple[str, PluginManager]:
    """Return the name of a platform on recorded facts, and the plugins that have it.

    Args:
        base: The platform.
        recorded: Of its device, whose memory becomes the host's.
        without: Slots whose candidates need the device's own library.
    """
    named = f"simulated-{base.name}"

    class Simulated(base):
        name = named
        targets = ()

        def probe(self) -> Detection:
            return Available(-1)

        def facts(self) -> DeviceFacts:
            return replace(recorded, platform=named, device="cpu", memory_bytes=1 << 30)

        def candidates(self) -> Sequence[Candidate]:
            return [c for c in super().candidates() if c.slot not in without]

        def take_part(self, rank: int, size: int) -> None:
            raise ConfigError("ranks are processes of their own, where nobody simulates a device")

        def activate(self, config: EngineConfig) -> Mapping[str, object]:
            return {}

        def memory_budget(self, config: EngineConfig) -> MemoryBudget:
            return MemoryBudget(64 << 20)

        def release_memory(self) -> None:
            pass

    class Plugin:
        HOTSHOE_HOOK_API = 2

        @hookimpl
        def hotshoe_platforms(self) -> Mapping[str, Any]:
            return {named: Simulated}

    own = EntryPoint(named, "tests", "0", Plugin)
    return named, PluginManager([*installed_entry_points(), own])
