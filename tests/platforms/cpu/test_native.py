"""What every candidate asks of a specification."""

from hotshoe.platform import DeviceFacts
from hotshoe_cpu.native import isa_name, judge, kernels

FACTS = DeviceFacts("cpu", "cpu", "x", "y", 1, 1, frozenset(["avx2", "native:generic"]))
NO_KERNELS = DeviceFacts("cpu", "cpu", "x", "y", 1, 1)


def test_the_chosen_build() -> None:
    assert isa_name(FACTS) == "generic"
    assert isa_name(NO_KERNELS) is None
    assert kernels(FACTS).info()["isa"] == "generic"


def test_verdicts() -> None:
    verdict = judge(FACTS, "bfloat16", {"not this": False})
    assert (verdict.accepted, verdict.reason) == (True, "native kernels, generic")
    assert judge(FACTS, "bfloat16", {"good": False, "bad": True}).reason == "bad"
    assert judge(FACTS, "int8").reason.startswith("element type int8 is not one of float32")
    assert "no build" in judge(NO_KERNELS, "float32").reason
