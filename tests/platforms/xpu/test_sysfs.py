"""Cards become devices; what cannot be used has a cause."""

import pytest
from tests.platforms.xpu.conftest import A770, B580, MAX1550, UHD770, Card, Machine

from hotshoe_triton.detection import DriverFailureError, NoDriverError
from hotshoe_xpu.parts import MIB
from hotshoe_xpu.sysfs import gpus, has_runtime

MAX, ARC_A, ARC_B = "Intel Data Center GPU Max 1550", "Intel Arc A770", "Intel Arc B580"


def test_cards_are_described(machine: Machine) -> None:
    first, second = gpus(machine.plug(A770, B580).root)
    assert (first.part.name, first.part.arch, first.driver) == (ARC_A, "dg2", "i915")
    assert (second.part.name, second.part.arch, second.driver) == (ARC_B, "bmg", "xe")
    assert (first.address, first.node) == ("0000:1a:00.0", "dev/dri/renderD128")
    assert first.part.memory_bytes == 15_473 * MIB


def test_every_tile_is_a_device(machine: Machine) -> None:
    found = gpus(machine.plug(MAX1550).root)
    assert [gpu.part.memory_bytes // MIB for gpu in found] == [65_520, 65_520]
    assert {gpu.part.cores for gpu in found} == {64}


def test_cards_as_devices(machine: Machine, monkeypatch) -> None:
    monkeypatch.setenv("ZE_FLAT_DEVICE_HIERARCHY", "COMPOSITE")
    [gpu] = gpus(machine.plug(MAX1550).root)
    assert (gpu.part.memory_bytes // MIB, gpu.part.cores) == (131_040, 128)


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        ("", [MAX, MAX, ARC_B]),
        ("2", [ARC_B]),
        ("2,0", [MAX, ARC_B]),
        ("7", []),
    ],
)
def test_visibility_is_level_zeros(machine: Machine, monkeypatch, mask, names) -> None:
    machine.plug(MAX1550, B580)
    monkeypatch.setenv("ZE_AFFINITY_MASK", mask)
    assert [gpu.part.name for gpu in gpus(machine.root)] == names


def test_a_mask_that_is_not_understood(machine: Machine, monkeypatch) -> None:
    monkeypatch.setenv("ZE_AFFINITY_MASK", "0.1")
    with pytest.raises(DriverFailureError, match="name devices alone"):
        gpus(machine.plug(MAX1550).root)


@pytest.mark.parametrize(
    ("cards", "reason"),
    [
        ((), "no Intel GPU"),
        ((Card(0x2330, "nvidia", 0x10DE),), "no Intel GPU"),
        ((UHD770,), "Intel GPU 0x4680 is none of the parts known here"),
        ((Card(0xE20B, "vfio-pci"),), "Intel Arc B580 has driver vfio-pci, not i915 or xe"),
    ],
)
def test_nothing_to_use(machine: Machine, cards, reason: str) -> None:
    with pytest.raises(NoDriverError) as caught:
        gpus(machine.plug(*cards).root)
    assert str(caught.value) == reason


def test_a_processors_graphics_do_not_count(machine: Machine) -> None:
    [gpu] = gpus(machine.plug(UHD770, B580).root)
    assert gpu.part.name == ARC_B


def test_a_device_that_does_not_open_is_a_failure(machine: Machine) -> None:
    machine.plug(B580)
    (machine.root / "dev/dri/renderD128").unlink()
    with pytest.raises(DriverFailureError, match="/dev/dri/renderD128 cannot be opened"):
        gpus(machine.root)


def test_a_card_without_level_zeros_driver_is_a_failure(machine: Machine, monkeypatch) -> None:
    machine.plug(B580)
    library = next(machine.root.rglob("libze_intel_gpu.so.1"))
    library.unlink()
    with pytest.raises(DriverFailureError, match="install Intel's compute runtime"):
        gpus(machine.root)
    (machine.root / "opt").mkdir()
    (machine.root / "opt" / library.name).touch()
    assert not has_runtime(machine.root)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere:/opt")
    assert has_runtime(machine.root)
