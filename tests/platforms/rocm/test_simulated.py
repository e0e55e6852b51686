"""The whole kit on a machine that is simulated: the platform's own candidates, interpreted.

An MI355X whose memory is the host's. Its format of 8-bit floats is the one the interpreter knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.platforms.triton.conftest import ON_DEVICE

from hotshoe.config import EngineConfig
from hotshoe.platform import Available, Detection, DeviceFacts, MemoryBudget
from hotshoe.plugins import PluginManager, hookimpl
from hotshoe.plugins.manager import EntryPoint, installed_entry_points
from hotshoe.slots import Candidate
from hotshoe_conformance.kit import Kit, Options
from hotshoe_rocm.platform import RocmPlatform
from hotshoe_rocm.targets import TARGETS

NAME = "simulated-rocm"
#: Whether the interpreter takes more than seconds; attention and products take it many minutes,
#: and have cases of their own beside the kernels.
SLOTS = {
    "rms_norm": False,
    "add_rms_norm": False,
    "gated_activation": False,
    "embedding": False,
    "rotary_and_cache": True,
    "sample": True,
}
#: Slots whose candidates need HIP itself.
HIP = ("transfer", "graph", "communicator")


class Simulated(RocmPlatform):
    """Few compute units, so that the interpreter has few programs to run."""

    name = NAME
    targets = ()

    def probe(self) -> Detection:
        return Available(-1)

    def facts(self) -> DeviceFacts:
        [target] = [t for t in TARGETS if t.facts.arch == "gfx950"]
        changes = {"platform": NAME, "device": "cpu", "memory_bytes": 1 << 30, "compute_units": 4}
        return replace(target.facts, **changes)

    def candidates(self) -> Sequence[Candidate]:
        return [c for c in super().candidates() if c.slot not in HIP]

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        return {}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        return MemoryBudget(64 << 20)


class Plugin:
    HOTSHOE_HOOK_API = 1

    @hookimpl
    def hotshoe_platforms(self) -> Mapping[str, Any]:
        return {NAME: Simulated}


@pytest.mark.skipif(ON_DEVICE, reason="needs Triton's interpreter, and there is a GPU")
@pytest.mark.parametrize(
    "slot", [pytest.param(s, marks=pytest.mark.slow if slow else ()) for s, slow in SLOTS.items()]
)
def test_conformance(slot: str) -> None:
    own = EntryPoint(NAME, "tests", "0", Plugin)
    plugins = PluginManager([*installed_entry_points(), own])
    report = Kit(NAME, Options(slot=slot, quick=True), plugins).run()
    assert [str(defect) for defect in report.defects] == []
    assert [found.verdict for found in report.slots] == ["native"]
