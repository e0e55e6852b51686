"""Detection with its causes, facts, and what the platform decides; no GPU is needed."""

import types

import pytest
import torch
from tests.platforms.xpu.conftest import A770, B580, MAX1550, Machine

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.platform import Absent, Available, Broken
from hotshoe.slots import SLOTS, Selector
from hotshoe_triton import gpu, memory
from hotshoe_xpu import candidates
from hotshoe_xpu.platform import XpuPlatform


def test_available(machine: Machine, xpu_torch) -> None:
    assert XpuPlatform(machine.plug(B580).root).probe() == Available(100)


def test_absent_without_a_gpu(machine: Machine, xpu_torch) -> None:
    assert XpuPlatform(machine.root).probe() == Absent("no Intel GPU")


def test_absent_when_every_gpu_is_hidden(machine: Machine, xpu_torch, monkeypatch) -> None:
    monkeypatch.setenv("ZE_AFFINITY_MASK", "3")
    detection = XpuPlatform(machine.plug(B580).root).probe()
    assert isinstance(detection, Absent) and "ZE_AFFINITY_MASK" in detection.reason


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.11.0+cu130"])
def test_a_gpu_without_an_xpu_build_of_torch_is_broken(machine, monkeypatch, version) -> None:
    monkeypatch.setattr(gpu, "torch_build", lambda: {"__version__": version, "xpu": None})
    detection = XpuPlatform(machine.plug(B580).root).probe()
    assert isinstance(detection, Broken)
    assert f"Intel Arc B580 is here, but torch {version} was built without XPU" in detection.cause


def test_a_device_that_cannot_be_opened_is_broken(machine: Machine, xpu_torch) -> None:
    machine.plug(B580)
    (machine.root / "dev/dri/renderD128").unlink()
    assert isinstance(XpuPlatform(machine.root).probe(), Broken)


def test_facts(machine: Machine, monkeypatch) -> None:
    monkeypatch.setattr(candidates, "has_triton", lambda: False)
    platform = XpuPlatform(machine.plug(MAX1550, A770).root)
    facts = platform.facts()
    assert (facts.platform, facts.device, facts.arch) == ("xpu", "xpu:0", "pvc")
    assert facts.features == {"bfloat16", "int8", "xmx", "slm_128k", "fp64"}
    platform.resolve(EngineConfig(platform_options={"device": 2}))
    monkeypatch.setattr(candidates, "has_triton", lambda: True)
    facts = platform.facts()
    assert (facts.device, facts.arch, facts.compute_units) == ("xpu:2", "dg2", 32)
    assert facts.features == {"bfloat16", "int8", "xmx", "slm_64k", "triton"}


def test_ranks_take_one_device_each(machine: Machine) -> None:
    platform = XpuPlatform(machine.plug(MAX1550).root)
    platform.take_part(1, 2)
    assert platform.facts().device == "xpu:1"
    with pytest.raises(ConfigError, match="2 are visible"):
        platform.take_part(0, 2)


def test_what_is_open_is_decided(machine: Machine) -> None:
    platform = XpuPlatform(machine.root)
    assert {c.field for c in platform.resolve(EngineConfig())} == {
        "block_size",
        "max_num_batched_tokens",
    }
    assert platform.resolve(EngineConfig(block_size=16, max_num_batched_tokens=512)) == []
    with pytest.raises(ConfigError, match="platform xpu has no option 'tile'"):
        platform.resolve(EngineConfig(platform_options={"tile": 1}))


@pytest.mark.parametrize(("device_id", "fits"), [(0xE20B, True), (0x56A0, False)])
def test_activation_takes_the_device_that_was_described(
    machine: Machine, monkeypatch, device_id: int, fits: bool
) -> None:
    calls: list[object] = []
    found = types.SimpleNamespace(device_id=device_id, name="what is here", driver_version="1.6")
    monkeypatch.setattr(torch.xpu, "set_device", calls.append)
    monkeypatch.setattr(torch.xpu, "init", lambda: calls.append("init"))
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda index: found)
    monkeypatch.setattr(memory, "start", calls.append)
    platform = XpuPlatform(machine.plug(B580).root)
    if fits:
        assert platform.activate(EngineConfig())["driver"] == "1.6"
        assert calls == [0, "init", torch.xpu]
    else:
        with pytest.raises(PlatformError, match="PyTorch sees what is here at xpu:0"):
            platform.activate(EngineConfig())


def test_candidates_have_known_slots_and_unique_names(machine: Machine) -> None:
    platform = XpuPlatform(machine.plug(B580).root)
    Selector(SLOTS, platform.candidates(), platform.facts())
