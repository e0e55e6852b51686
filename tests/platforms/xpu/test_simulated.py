"""The whole kit on a machine that is simulated: the platform's own candidates, host memory.

What oneDNN computes on the device, PyTorch computes on the host through the same operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.platforms.xpu.conftest import on_host

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError
from hotshoe.platform import Available, Detection, DeviceFacts, MemoryBudget
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.slots import Candidate
from hotshoe_conformance.kit import Kit, Options
from hotshoe_xpu.platform import XpuPlatform

NAME = "simulated-xpu"


class Simulated(XpuPlatform):
    """An Arc B580 whose memory is the host's; only page-locked memory cannot be simulated."""

    name = NAME
    targets = ()

    def probe(self) -> Detection:
        return Available(-1)

    def facts(self) -> DeviceFacts:
        return replace(on_host(), platform=NAME, memory_bytes=1 << 30)

    def candidates(self) -> Sequence[Candidate]:
        return [c for c in super().candidates() if c.slot not in ("transfer", "communicator")]

    def take_part(self, rank: int, size: int) -> None:
        if size > 1:
            raise ConfigError("ranks are processes of their own, where nobody simulates an XPU")

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        return {}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        return MemoryBudget(64 << 20)


class Plugin:
    HOTSHOE_HOOK_API = 1

    @hookimpl
    def hotshoe_platforms(self) -> Mapping[str, Any]:
        return {NAME: Simulated}


@pytest.fixture
def plugins() -> PluginManager:
    own = EntryPoint(NAME, "tests", "0", Plugin)
    return PluginManager([*installed_entry_points(), own])


def test_conformance(plugins: PluginManager) -> None:
    report = Kit(NAME, Options(quick=True), plugins).run()
    assert [str(defect) for defect in report.defects] == []
    verdicts = {slot.slot: slot.verdict for slot in report.slots}
    assert (verdicts["attention"], verdicts["linear"]) == ("native", "native")
    assert verdicts["rotary_and_cache"] == "refused", "Triton is not here"
