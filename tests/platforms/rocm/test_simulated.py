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
#: What the interpreter computes in seconds, and what takes it longer. Attention takes it many
#: minutes, and has cases of its own beside its kernels. Row by row it adds in an order of its own,
#: so that `one_tile` cannot show here that it does not depend on the batch.
QUICK = [(slot, None) for slot in ("rms_norm", "add_rms_norm", "gated_activation", "embedding")]
LONGER = [("linear", "streaming"), ("rotary_and_cache", None), ("sample", None)]
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
    ("slot", "candidate"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONGER)]
)
def test_conformance(slot: str, candidate: str | None) -> None:
    own = EntryPoint(NAME, "tests", "0", Plugin)
    plugins = PluginManager([*installed_entry_points(), own])
    report = Kit(NAME, Options(slot=slot, candidate=candidate, quick=True), plugins).run()
    assert [str(defect) for defect in report.defects] == []
    assert [found.verdict for found in report.slots] == ["native"]
