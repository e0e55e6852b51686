"""The whole kit on a machine that is simulated: the platform's own candidates, interpreted.

An MI355X whose memory is the host's. Its format of 8-bit floats is the one the interpreter knows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.platforms.simulated import simulate
from tests.platforms.triton.conftest import ON_DEVICE

from hotshoe_conformance.kit import Kit, Options
from hotshoe_rocm.platform import RocmPlatform
from hotshoe_rocm.targets import TARGETS

#: What the interpreter computes in seconds, and what takes it longer. Attention takes it many
#: minutes, and has cases of its own beside its kernels. Row by row it adds in an order of its own,
#: so that `one_tile` cannot show here that it does not depend on the batch.
QUICK = [(slot, None) for slot in ("rms_norm", "add_rms_norm", "gated_activation", "embedding")]
LONGER = [("linear", "streaming"), ("moe", "triton"), ("rotary_and_cache", None), ("sample", None)]
#: Slots whose candidates need HIP itself.
HIP = ("transfer", "graph", "communicator")


@pytest.mark.skipif(ON_DEVICE, reason="needs Triton's interpreter, and there is a GPU")
@pytest.mark.parametrize(
    ("slot", "candidate"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in LONGER)]
)
def test_conformance(slot: str, candidate: str | None) -> None:
    [facts] = [target.facts for target in TARGETS if target.facts.arch == "gfx950"]
    # Few compute units, so that the interpreter has few programs to run.
    name, plugins = simulate(RocmPlatform, replace(facts, compute_units=4), without=HIP)
    report = Kit(name, Options(slot=slot, candidate=candidate, quick=True), plugins).run()
    assert [str(defect) for defect in report.defects] == []
    assert [found.verdict for found in report.slots] == ["native"]
