"""What GPU platforms do alike, by a platform of a vendor that there is not."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.platforms.triton.conftest import device_facts

from hotshoe.config import EngineConfig
from hotshoe.errors import ConfigError, PlatformError
from hotshoe.platform import Absent, Available, Broken, DeviceFacts
from hotshoe_triton import gpu
from hotshoe_triton.detection import DriverFailureError, NoDriverError


@dataclass(frozen=True)
class Card:
    name: str


class Vendor(gpu.GpuPlatform[Card]):
    name, stack, constant, hides = "vendor", "VCS", "vcs", "VCS_VISIBLE"
    found: Sequence[Card] | Exception = (Card("one"), Card("two"))
    refused = ""

    def gpus(self) -> Sequence[Card]:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def unfit(self, found: Sequence[Card]) -> str:
        return f"{found[0].name} is too old" if found[0].name == self.refused else ""

    def facts(self) -> DeviceFacts:
        return device_facts(self.chosen().name, f"cuda:{self._options.device}")

    def taken(self, gpu: Card, device: Any) -> Mapping[str, object]:
        return {"gpu": gpu.name, "device": device}


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    monkeypatch.setattr(gpu, "torch_build", lambda: {"__version__": "2.11.0+vcs9", "vcs": "9"})
    return Vendor()


def test_a_cluster_is_asked_for_a_gpu_of_each_rank(vendor: Vendor) -> None:
    assert vendor.cluster_resources == {"GPU": 1.0}


@pytest.mark.parametrize(
    ("found", "refused", "finding"),
    [
        ((Card("one"),), "", Available(gpu.SCORE)),
        ((Card("one"),), "one", Absent("one is too old")),
        ((), "", Absent("no GPU is visible (VCS_VISIBLE hides all, or there is none)")),
        (NoDriverError("no driver"), "", Absent("no driver")),
        (DriverFailureError("it fails"), "", Broken("it fails")),
    ],
)
def test_findings(vendor: Vendor, found, refused: str, finding) -> None:
    vendor.found, vendor.refused = found, refused
    assert vendor.probe() == finding


@pytest.mark.parametrize("build", [{}, {"__version__": "2.13.0+cpu", "vcs": None}])
def test_another_build_of_torch_is_broken_not_absent(vendor, monkeypatch, build) -> None:
    monkeypatch.setattr(gpu, "torch_build", lambda: build)
    version = build.get("__version__", "none")
    cause = f"one is here, but torch {version} was built without VCS; install the VCS build of"
    assert vendor.probe() == Broken(f"{cause} torch")


class Module(types.SimpleNamespace):
    """PyTorch's module of the device; notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__(calls=[])

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> object:
            self.calls.append((name, *arguments))
            return {
                "memory_stats": {"allocated_bytes.all.peak": 10},
                "mem_get_info": (70, 100),
            }.get(name, 20 if name == "memory_allocated" else name)

        return call


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda device: {"cuda:1": module}[device])
    return module


def test_the_chosen_device_is_taken_and_its_memory_counted(vendor: Vendor, module: Module) -> None:
    vendor.resolve(EngineConfig(platform_options={"device": 1, "memory_fraction": 0.5}))
    report = vendor.activate(EngineConfig())
    assert report.items() >= {"gpu": "two", "device": "get_device_properties"}.items()
    assert module.calls == [
        ("set_device", 1),
        ("init",),
        ("reset_peak_memory_stats",),
        ("get_device_properties", 1),
    ]
    # Half of 100, of which 10 were in use at most, and 10 of the 30 taken are not ours.
    assert vendor.memory_budget(EngineConfig()).available_bytes == 30


def test_a_device_that_is_not_there_is_refused_before_anything_is_touched(
    vendor: Vendor, module: Module
) -> None:
    vendor.resolve(EngineConfig(platform_options={"device": 2}))
    with pytest.raises(ConfigError, match="2 GPUs are visible"):
        vendor.activate(EngineConfig())
    assert module.calls == []


def test_a_device_that_is_not_served_is_refused_too(vendor: Vendor, module: Module) -> None:
    """Detection judges the first alone; another one must not run on references instead."""
    vendor.resolve(EngineConfig(platform_options={"device": 1}))
    vendor.refused = "two"
    with pytest.raises(PlatformError, match="two is too old; choose another by platform_options"):
        vendor.activate(EngineConfig())
    assert module.calls == []


def test_what_is_open_is_decided(vendor: Vendor) -> None:
    found = {change.field: change.value for change in vendor.resolve(EngineConfig())}
    assert found == {"block_size": gpu.BLOCK_SIZE, "max_num_batched_tokens": gpu.TOKEN_BUDGET}
    assert vendor.resolve(EngineConfig(block_size=16, max_num_batched_tokens=512)) == []
    with pytest.raises(ConfigError, match="platform vendor has no option 'tile'"):
        vendor.resolve(EngineConfig(platform_options={"tile": 1}))


def test_ranks_take_one_gpu_each(vendor: Vendor) -> None:
    vendor.take_part(1, 2)
    assert vendor.facts().device == "cuda:1"
    with pytest.raises(ConfigError, match="2 are visible"):
        vendor.take_part(0, 2)
