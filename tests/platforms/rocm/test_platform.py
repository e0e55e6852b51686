"""Detection with its causes, facts, and what the platform decides; no GPU is needed."""

import types

import pytest
import torch
from tests.platforms.rocm.conftest import MI250X, MI300X, RAPHAEL, RX7900XTX, Machine

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.platform import Absent, Available, Broken
from hotshoe.slots import SLOTS, Selector
from hotshoe_rocm.platform import RocmPlatform
from hotshoe_triton import gpu, memory


def test_available(machine: Machine, rocm_torch) -> None:
    assert RocmPlatform(machine.plug(MI300X).root).probe() == Available(100)


def test_absent_without_a_gpu(machine: Machine, rocm_torch) -> None:
    assert RocmPlatform(machine.root).probe() == Absent("no AMD GPU")


def test_absent_when_every_gpu_is_hidden(machine: Machine, rocm_torch, monkeypatch) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")
    detection = RocmPlatform(machine.plug(MI300X).root).probe()
    assert isinstance(detection, Absent) and "HIP_VISIBLE_DEVICES" in detection.reason


def test_absent_where_no_kernel_is_for_it(machine: Machine, rocm_torch) -> None:
    detection = RocmPlatform(machine.plug(RAPHAEL).root).probe()
    assert isinstance(detection, Absent)
    assert "is a gfx1036; there are kernels for gfx90a" in detection.reason
    detection = RocmPlatform(machine.plug(RX7900XTX).root).probe()
    assert isinstance(detection, Absent)
    assert detection.reason.endswith("has them: set HIP_VISIBLE_DEVICES=1")


@pytest.mark.parametrize("name", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_another_gpu_is_named_as_hip_counts(
    machine: Machine, rocm_torch, monkeypatch, name
) -> None:
    for node in (RX7900XTX, RX7900XTX, RAPHAEL):
        machine.plug(node)
    monkeypatch.setenv(name, "2, 1")
    detection = RocmPlatform(machine.root).probe()
    assert isinstance(detection, Absent)
    assert detection.reason.endswith("has them: set HIP_VISIBLE_DEVICES=1")
    monkeypatch.setenv(name, "2,0,1")
    detection = RocmPlatform(machine.root).probe()
    assert detection.reason.endswith("has them: set HIP_VISIBLE_DEVICES=0")


@pytest.mark.parametrize(
    "build",
    [
        {"__version__": "2.13.0+cpu", "hip": None, "cuda": None},
        {"__version__": "2.11.0+cu130", "hip": None, "cuda": "13.0"},
        {},
    ],
)
def test_a_gpu_without_a_rocm_build_of_torch_is_broken(machine, monkeypatch, build) -> None:
    monkeypatch.setattr(gpu, "torch_build", lambda: build)
    detection = RocmPlatform(machine.plug(MI300X).root).probe()
    assert isinstance(detection, Broken)
    assert "install the ROCm build of torch" in detection.cause
    assert build.get("__version__", "none") in detection.cause


def test_a_driver_that_cannot_be_opened_is_broken(machine: Machine, rocm_torch) -> None:
    machine.plug(MI300X)
    (machine.root / "dev/kfd").unlink()
    detection = RocmPlatform(machine.root).probe()
    assert isinstance(detection, Broken) and "/dev/kfd cannot be opened" in detection.cause


def test_facts(machine: Machine) -> None:
    platform = RocmPlatform(machine.plug(MI250X, MI300X).root)
    facts = platform.facts()
    assert (facts.platform, facts.device, facts.arch) == ("rocm", "cuda:0", "gfx90a")
    platform.resolve(EngineConfig(platform_options={"device": 1}))
    facts = platform.facts()
    assert (facts.device, facts.arch, facts.compute_units) == ("cuda:1", "gfx942", 304)
    platform.resolve(EngineConfig(platform_options={"device": 2}))
    with pytest.raises(ConfigError, match="2 GPUs are visible"):
        platform.facts()


def test_ranks_take_one_gpu_each(machine: Machine) -> None:
    platform = RocmPlatform(machine.plug(MI300X, MI300X, MI300X).root)
    platform.resolve(EngineConfig(platform_options={"device": 1}))
    platform.take_part(1, 2)
    assert platform.facts().device == "cuda:2"
    with pytest.raises(ConfigError, match="need GPUs 2 to 3, but 3 are visible"):
        platform.take_part(0, 2)


def test_what_is_open_is_decided(machine: Machine) -> None:
    platform = RocmPlatform(machine.root)
    changes = {c.field for c in platform.resolve(EngineConfig())}
    assert changes == {"block_size", "max_num_batched_tokens"}
    assert platform.resolve(EngineConfig(block_size=16, max_num_batched_tokens=512)) == []
    with pytest.raises(ConfigError, match="platform rocm has no option 'devices'"):
        platform.resolve(EngineConfig(platform_options={"devices": 1}))


@pytest.fixture
def hip(monkeypatch):
    """Return a function that lets HIP be there, with a device of some architecture."""

    def start(arch: str) -> list[object]:
        calls: list[object] = []
        monkeypatch.setattr(torch.cuda, "set_device", calls.append)
        monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("init"))
        monkeypatch.setattr(memory, "start", calls.append)
        device = types.SimpleNamespace(gcnArchName=f"{arch}:sramecc+:xnack-")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: device)
        return calls

    return start


def test_activation_takes_the_device(machine: Machine, hip) -> None:
    calls = hip("gfx942")
    platform = RocmPlatform(machine.plug(RX7900XTX, MI300X).root)
    machine.install_amdsmi()
    platform.resolve(EngineConfig(platform_options={"device": 1}))
    assert platform.activate(EngineConfig())["driver"] == "6.12.12"
    assert calls == [1, "init", torch.cuda]


def test_activation_refuses_another_device_than_the_one_described(machine: Machine, hip) -> None:
    hip("gfx1100")
    platform = RocmPlatform(machine.plug(MI300X).root)
    with pytest.raises(PlatformError, match="HIP sees a gfx1100 at cuda:0"):
        platform.activate(EngineConfig())


def test_candidates_have_known_slots_and_unique_names(machine: Machine) -> None:
    platform = RocmPlatform(machine.plug(MI300X).root)
    Selector(SLOTS, platform.candidates(), platform.facts())
