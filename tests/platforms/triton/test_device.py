"""Constants of architectures, and the judgement that every candidate begins with."""

from dataclasses import replace

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe_triton import device
from hotshoe_triton.attention import DECODE, PREFILL


def test_unknown_architectures_and_types_are_refused(facts: DeviceFacts) -> None:
    assert device.judge(facts, "bfloat16").accepted
    strange = replace(facts, arch="sm_61")
    assert "architecture sm_61 is not one of sm_80" in device.judge(strange, "bfloat16").reason
    assert "element type int8" in device.judge(facts, "int8").reason


def test_the_first_reason_that_holds_is_given(facts: DeviceFacts) -> None:
    reasons = {"never": False, "first": True, "second": True}
    assert device.judge(facts, "float16", reasons).reason == "first"


@pytest.mark.parametrize("name", device.ARCHS)
def test_every_architecture_is_whole(name: str) -> None:
    arch = device.ARCHS[name]
    assert arch.backend in ("cuda", "hip")
    assert str(arch.target) == name.removeprefix("sm_")
    assert arch.warp_size == (64 if name.startswith("gfx9") else 32)
    assert arch.family in PREFILL
    assert arch.family in DECODE
    assert arch.fp8 in ("", device.OCP, device.FNUZ)


@pytest.mark.parametrize(("n", "power"), [(1, 1), (2, 2), (3, 4), (96, 128), (128, 128)])
def test_next_power_of_2(n: int, power: int) -> None:
    assert device.next_power_of_2(n) == power
