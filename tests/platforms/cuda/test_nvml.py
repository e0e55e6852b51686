"""What NVML says becomes plain data, and its failures become findings."""

from dataclasses import replace

import pytest
from tests.platforms.cuda.conftest import A100, DIVIDED, H200, LARGE, SMALL, T4

from hotshoe_cuda import nvml


def test_gpus_are_described(install) -> None:
    fake = install(H200, A100, T4)
    found = nvml.gpus()
    assert [gpu.compute_units for gpu in found] == [132, 108, 40]
    assert [gpu.capability for gpu in found] == [(9, 0), (8, 0), (7, 5)]
    assert found[0].memory_bytes == 143_771 << 20
    assert found[0].driver == "580.1"
    assert fake.open == 0, "the library is closed again"


def test_a_gpu_that_is_seen_alone_has_no_links(install, monkeypatch) -> None:
    install(H200, replace(H200, uuid="GPU-9c2d"))
    monkeypatch.setenv(nvml.VISIBLE, "1")
    assert [gpu.linked for gpu in nvml.gpus()] == [False]


def test_links_among_all_are_needed(install) -> None:
    twin = replace(H200, uuid="GPU-9c2d")
    install(H200)
    assert not nvml.gpus()[0].linked, "there is no other one"
    install(H200, twin)
    assert all(gpu.linked for gpu in nvml.gpus())
    install(H200, twin, A100)
    assert not any(gpu.linked for gpu in nvml.gpus()), "one of them is not"
    install(H200, T4)
    assert not any(gpu.linked for gpu in nvml.gpus())


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, ["NVIDIA H200", "NVIDIA A100-SXM4-80GB"]),
        ("1,0", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200"]),
        ("1", ["NVIDIA A100-SXM4-80GB"]),
        ("GPU-8f", ["NVIDIA H200"]),
        ("0,7,1", ["NVIDIA H200"]),
        ("", []),
        ("-1", []),
    ],
)
def test_visibility_is_cudas(install, monkeypatch, setting: str | None, names: list[str]) -> None:
    install(H200, A100)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.name for gpu in nvml.gpus()] == names


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        (None, [SMALL.name]),
        ("0", [H200.name]),
        ("1", [SMALL.name]),
        ("0,1", [SMALL.name]),
        (LARGE.uuid, [LARGE.name]),
        ("GPU-8f,MIG-b7", [LARGE.name]),
        ("MIG-none", []),
    ],
)
def test_of_instances_the_first_is_shown(
    install, monkeypatch, setting: str | None, names: list[str]
) -> None:
    install(H200, DIVIDED)
    if setting is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", setting)
    assert [gpu.name for gpu in nvml.gpus()] == names


def test_an_instance_is_described_by_what_it_has(install) -> None:
    install(DIVIDED)
    [found] = nvml.gpus()
    assert (found.compute_units, found.memory_bytes) == (16, SMALL.memory_bytes)
    assert (found.uuid, found.capability) == (SMALL.uuid, (9, 0))
    install(replace(DIVIDED, places=(None,)))
    assert nvml.gpus() == [], "without instances a divided GPU cannot be used"


@pytest.mark.parametrize("failure", ["NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"])
def test_no_driver_is_an_ordinary_finding(install, failure: str) -> None:
    install(failure=failure)
    with pytest.raises(nvml.NoDriverError, match="it says"):
        nvml.gpus()


def test_a_driver_that_fails_is_not_absent(install) -> None:
    install(failure="NVMLError")
    with pytest.raises(nvml.DriverFailureError, match="does not answer: it says"):
        nvml.gpus()


def test_a_failure_while_asking(install, monkeypatch) -> None:
    fake = install(H200)

    def fail(handle: object) -> None:
        raise fake.NVMLError("GPU is lost")

    monkeypatch.setattr(fake, "nvmlDeviceGetName", fail)
    with pytest.raises(nvml.DriverFailureError, match="GPU is lost"):
        nvml.gpus()
    assert fake.open == 0
