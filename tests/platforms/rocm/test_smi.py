"""What `amdsmi` says is taken where it says something; without it, nothing is."""

import sys

import pytest
from tests.platforms.rocm.conftest import MI300X, RX7900XTX, Machine

from hotshoe_rocm import smi
from hotshoe_triton.detection import DriverFailureError


def test_entries_by_node(machine: Machine) -> None:
    fake = machine.plug(MI300X, RX7900XTX).install_amdsmi()
    found = smi.entries()
    assert found[1] == smi.Entry("AMD Instinct MI300X", "gfx942", 196_592 << 20, "6.12.12")
    assert found[2].arch == "gfx1100"
    assert fake.open == 0, "the library is closed again"


def test_what_is_not_available_stays_open(machine: Machine) -> None:
    machine.plug(MI300X).install_amdsmi(market_name="N/A", target_graphics_version="N/A")
    assert smi.entries()[1] == smi.Entry("", "", 196_592 << 20, "6.12.12")


def test_without_the_package(machine: Machine) -> None:
    assert smi.entries() == {}


@pytest.mark.parametrize("error", [ImportError, KeyError, OSError])
def test_a_package_whose_library_does_not_load(machine: Machine, monkeypatch, error) -> None:
    machine.plug(MI300X).install_amdsmi()

    def fail(name: str) -> object:
        raise error("libamd_smi.so")

    monkeypatch.setattr(smi.importlib, "import_module", fail)
    assert smi.entries() == {}


def test_a_library_without_a_driver(machine: Machine) -> None:
    machine.plug(MI300X).install_amdsmi().no_driver = True
    assert smi.entries() == {}


def test_a_gpu_that_is_lost_is_a_failure(machine: Machine, monkeypatch) -> None:
    fake = machine.plug(MI300X).install_amdsmi()

    def fail(handle: int) -> object:
        raise fake.AmdSmiException("AMDSMI_STATUS_RETRY")

    monkeypatch.setattr(fake, "amdsmi_get_gpu_vram_info", fail)
    with pytest.raises(DriverFailureError, match="does not describe the GPUs: AMDSMI_STATUS_RETRY"):
        smi.entries()
    assert fake.open == 0
    assert sys.modules["amdsmi"] is fake
