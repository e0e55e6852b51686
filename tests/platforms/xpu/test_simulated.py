"""The whole kit on a machine that is simulated: the platform's own candidates, host memory.

What oneDNN computes on the device, PyTorch computes on the host through the same operators.
"""

from __future__ import annotations

from tests.platforms.simulated import simulate
from tests.platforms.xpu.conftest import on_host

from hotshoe_conformance.kit import Kit, Options
from hotshoe_xpu.platform import XpuPlatform


def test_conformance() -> None:
    """An Arc B580; page-locked memory and exchanges cannot be simulated."""
    name, plugins = simulate(XpuPlatform, on_host(), without=("transfer", "communicator"))
    report = Kit(name, Options(quick=True), plugins).run()
    assert [str(defect) for defect in report.defects] == []
    verdicts = {slot.slot: slot.verdict for slot in report.slots}
    assert (verdicts["attention"], verdicts["linear"]) == ("native", "native")
    assert verdicts["rotary_and_cache"] == "refused", "Triton is not here"
