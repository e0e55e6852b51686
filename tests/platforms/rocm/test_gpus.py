"""Both sources together, and which GPUs are hidden from this process."""

from dataclasses import replace

import pytest
from tests.platforms.rocm.conftest import MI250X, MI300X, RX7900XTX, Machine

from hotshoe_rocm.gpus import gpus
from hotshoe_triton.detection import DriverFailureError


def test_the_files_tell_enough(machine: Machine) -> None:
    first, second = gpus(machine.plug(MI300X, RX7900XTX).root)
    assert (first.name, first.arch) == ("AMD Instinct MI300X OAM", "gfx942")
    assert second.name == "AMD gfx1100 (0x744c)"
    assert (second.compute_units, second.memory_bytes) == (96, 25_753_026_560)


def test_the_library_names_them_better(machine: Machine) -> None:
    machine.plug(MI300X, RX7900XTX).install_amdsmi()
    assert [gpu.name for gpu in gpus(machine.root)] == [
        "AMD Instinct MI300X",
        "AMD Radeon RX 7900 XTX",
    ]


def test_a_partition_has_its_own_share(machine: Machine) -> None:
    """In mode CPX an MI300X is eight devices of 38 units; the library counts the whole chip."""
    share = replace(MI300X, simds=152, memory_bytes=MI300X.memory_bytes // 8)
    machine.plug(share).install_amdsmi(num_compute_units=304, vram_size=196_592)
    [gpu] = gpus(machine.root)
    assert (gpu.compute_units, gpu.memory_bytes) == (38, MI300X.memory_bytes // 8)


UUID = f"GPU-{MI300X.unique_id:016X}"


@pytest.mark.parametrize(
    ("settings", "archs"),
    [
        ({}, ["gfx90a", "gfx942", "gfx1100"]),
        ({"ROCR_VISIBLE_DEVICES": "2,1"}, ["gfx1100", "gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "2"}, ["gfx1100"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["gfx90a"]),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["gfx1100"]),
        ({"ROCR_VISIBLE_DEVICES": UUID}, ["gfx942"]),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, ["gfx90a"]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visibility_is_rocms(machine: Machine, monkeypatch, settings, archs) -> None:
    machine.plug(MI250X, MI300X, RX7900XTX)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert [gpu.arch for gpu in gpus(machine.root)] == archs


def test_an_overridden_version_is_what_hip_will_see(machine: Machine, monkeypatch) -> None:
    machine.plug(replace(RX7900XTX, version=110002))
    assert gpus(machine.root)[0].arch == "gfx1102"
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "11.0.0")
    assert gpus(machine.root)[0].arch == "gfx1100"
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "gfx1100")
    with pytest.raises(DriverFailureError, match="is not a version"):
        gpus(machine.root)


def test_a_device_that_does_not_open_is_a_failure(machine: Machine) -> None:
    machine.plug(MI300X)
    (machine.root / "dev/kfd").unlink()
    with pytest.raises(DriverFailureError, match="groups render and video"):
        gpus(machine.root)


def test_a_gpu_of_which_nothing_is_told_is_a_failure(machine: Machine) -> None:
    machine.plug(replace(MI300X, memory_bytes=0))
    with pytest.raises(DriverFailureError, match="neither memory nor compute units"):
        gpus(machine.root)
