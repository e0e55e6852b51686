"""Every candidate that is offered compiles for every architecture, to the instructions it needs.

The compiler runs in a process of its own, since this one may interpret kernels instead. One
architecture is compiled always, all of them in the slow tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.platforms.rocm.conftest import PARTS, lds_bytes

from hotshoe.slots import SLOTS
from hotshoe_rocm.candidates import offered

ROOT = Path(__file__).parents[3]
#: Slots whose candidates call the runtime or a library, and launch no kernel of ours.
WITHOUT_KERNELS = {"graph", "transfer", "communicator"}
NO_FP8 = {"gfx90a", "gfx1100", "gfx1151"}
#: Those whose 8-bit floats are the ones that checkpoints hold.
OCP = {"gfx950", "gfx1200", "gfx1201"}
#: Those that multiply 4-bit floats.
FP4 = {"gfx950"}
#: Candidates of slot `linear` for one form each, and where `offered` has it.
FORMS = {"groups": 4, "blocks": 5, "fp4": 6}
#: Those that hold any form as plain numbers, with x as it is or rounded, and where it is so.
WIDE = {"widened": {4}, "rounding": {2, 3, 5}}


def rows(arch: str) -> list[dict[str, object]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.platforms.rocm.offered", arch]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "arch",
    [pytest.param(a, marks=() if a == "gfx942" else pytest.mark.slow) for a in PARTS],
)
def test_what_is_offered_compiles(arch: str) -> None:
    part, compiled = PARTS[arch], rows(arch)
    found = [row for row in compiled if row["name"] not in WIDE]
    for name, specs in WIDE.items():
        wide = [row for row in compiled if row["name"] == name and "refused" not in row]
        assert {row["spec"] for row in wide} == specs and not any(row["fp8"] for row in wide)
    forms = [row for row in found if row["name"] in FORMS or row["spec"] in FORMS.values()]
    candidates = {(row["slot"], row["name"]) for row in found} | {("linear", n) for n in WIDE}
    assert candidates == {(c.slot, c.name) for c in offered() if c.slot not in WITHOUT_KERNELS}
    compiled = [row for row in found if "refused" not in row]
    assert {row["target"] for row in compiled} == {arch}
    assert {row["warp"] for row in compiled} == {part.wave}
    assert all(row["kernels"] for row in compiled)
    assert max(row["shared"] for row in compiled) <= lds_bytes(part)
    assert {(row["name"], row["spec"]) for row in forms if "refused" not in row} == {
        (name, spec)
        for name, spec in FORMS.items()
        if arch in {"groups": PARTS, "blocks": OCP, "fp4": FP4}[name]
    }
    refused = {
        (row["name"], row["refused"]) for row in found if "refused" in row and row not in forms
    }
    expected = {("aiter", "package amd-aiter is not installed")}
    wide = "v_head_dim 128 differs from head_dim 192"
    expected |= {(name, wide) for name in ("triton", "triton_alone")}
    expected |= {("padded", "values have as many channels as keys")}
    eight_bits = [row for row in found if row["slot"] == "linear" and row["spec"] == 3]
    eight_bits = [row for row in eight_bits if row not in forms]
    if arch in NO_FP8:
        reason = f"{arch} does not multiply fp8_e4m3"
        expected |= {(name, reason) for name in ("streaming", "one_tile")}
    else:
        assert {row["fp8"] for row in eight_bits} == {True}, "multiplied as 8-bit floats"
    assert refused == expected
    as_floats = [row for row in compiled if row["fp8"] and row not in eight_bits]
    wanted = {name for name, archs in (("blocks", OCP), ("fp4", FP4)) if arch in archs}
    assert {row["name"] for row in as_floats} == wanted


def test_every_slot_that_models_ask_for_has_a_native_candidate() -> None:
    asked = {n for n, s in SLOTS.items() if not s.composed_of}
    assert {c.slot for c in offered()} == asked


def test_claims_of_batch_invariance() -> None:
    """What `--batch-invariant` may choose; libraries and split work are not among it."""
    claimed = {(c.slot, c.name) for c in offered() if c.batch_invariant}
    assert {name for slot, name in claimed if slot == "linear"} == {"one_tile"}
    assert {name for slot, name in claimed if slot == "attention"} == {"triton_alone"}
