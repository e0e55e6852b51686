"""A machine with the Intel GPUs that a test wants: the kernel's files under a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hotshoe.platform import DeviceFacts
from hotshoe_triton import gpu
from hotshoe_xpu.parts import PARTS
from hotshoe_xpu.targets import describe


@dataclass(frozen=True)
class Card:
    """A card as the kernel shows it."""

    device_id: int
    driver: str = "xe"
    vendor: int = 0x8086


MAX1550 = Card(0x0BD5, "i915")
A770 = Card(0x56A0, "i915")
B580 = Card(0xE20B)
#: The graphics of a desktop processor.
UHD770 = Card(0x4680, "i915")


class Machine:
    """Files under a folder that stands for the file system's root."""

    def __init__(self, root: Path) -> None:
        self.root, self.count = root, 0

    def plug(self, *cards: Card) -> Machine:
        """Put cards in, and the driver of Level Zero."""
        for card in cards:
            bus = self.root / f"sys/devices/pci0000:00/0000:{0x1A + 0x12 * self.count:02x}:00.0"
            minor = 128 + self.count
            (bus / "drm" / f"renderD{minor}").mkdir(parents=True)
            (bus / "drm" / f"card{self.count}").mkdir()
            (bus / "vendor").write_text(f"{card.vendor:#06x}\n")
            (bus / "device").write_text(f"{card.device_id:#06x}\n")
            driver = self.root / "sys/bus/pci/drivers" / card.driver
            driver.mkdir(parents=True, exist_ok=True)
            (bus / "driver").symlink_to(driver)
            folder = self.root / f"sys/class/drm/card{self.count}"
            folder.mkdir(parents=True)
            (folder / "device").symlink_to(bus)
            (self.root / f"sys/class/drm/card{self.count}-DP-1").mkdir()
            node = self.root / f"dev/dri/renderD{minor}"
            node.parent.mkdir(parents=True, exist_ok=True)
            node.touch()
            self.count += 1
        library = self.root / "usr/lib/x86_64-linux-gnu/libze_intel_gpu.so.1"
        library.parent.mkdir(parents=True, exist_ok=True)
        library.touch()
        return self


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine without a GPU, whatever runs the tests."""
    for name in ("ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path)


@pytest.fixture
def xpu_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that was built for Intel GPUs."""
    build = {"__version__": "2.11.0+xpu", "xpu": "20250302", "cuda": None, "hip": None}
    monkeypatch.setattr(gpu, "torch_build", lambda: build)


def on_host(device_id: int = 0xE20B) -> DeviceFacts:
    """Return a part's facts with tensors in the host's memory."""
    from dataclasses import replace

    return replace(describe(PARTS[device_id], 0, has_triton=False), device="cpu")
