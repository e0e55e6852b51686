"""Which Intel GPUs this process may use, from the kernel's files alone. Nothing is initialized.

PyTorch lists them as Level Zero does: every tile of a card is a device, unless the environment
says that cards are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hotshoe_triton.detection import DriverFailureError, NoDriverError
from hotshoe_xpu.parts import PARTS, Part

CARDS = "sys/class/drm"
VENDOR = 0x8086
DRIVERS = ("i915", "xe")
#: Level Zero's variables: which devices are visible, and whether a card's tiles are devices.
MASK, HIERARCHY = "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"
#: Level Zero's driver of Intel GPUs, which no Python package brings, and where it may lie.
RUNTIME = "libze_intel_gpu.so.1"
LIBRARIES = ("usr/lib", "usr/lib64", "usr/lib/*-linux-gnu", "usr/local/lib*")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: a card, or a tile of one. `address` is the card's on the PCI bus."""

    part: Part
    device_id: int
    address: str
    driver: str
    node: str

    @property
    def name(self) -> str:
        """What people call it."""
        return self.part.name


def gpus(root: Path = Path("/")) -> list[Gpu]:
    """List the GPUs that this process may use, in Level Zero's order.

    Args:
        root: Of the file system.

    Raises:
        NoDriverError: No Intel GPU that is known here, or none with Intel's driver.
        DriverFailureError: There is one that this process cannot use.
    """
    cards = sorted(_cards(root), key=lambda gpu: gpu.address)
    if not cards:
        raise NoDriverError(_nothing(root))
    first = cards[0]
    if not os.access(root / first.node, os.R_OK | os.W_OK):
        raise DriverFailureError(
            f"{first.part.name} is here, but /{first.node} cannot be opened; add this user to the "
            "group render, or hand the device to the container with --device /dev/dri"
        )
    if not has_runtime(root):
        raise DriverFailureError(
            f"{first.part.name} is here, but Level Zero's driver {RUNTIME} is not; "
            "install Intel's compute runtime (libze-intel-gpu1)"
        )
    return visible(cards)


def visible(cards: list[Gpu]) -> list[Gpu]:
    """Make devices of cards, and leave those that the environment shows.

    Raises:
        DriverFailureError: It says what nobody understands.
    """
    hierarchy = os.environ.get(HIERARCHY, "FLAT").upper()
    if hierarchy == "COMPOSITE":
        devices = [replace(card, part=_whole(card.part)) for card in cards]
    else:
        devices = [card for card in cards for _ in range(card.part.tiles)]
    mask = os.environ.get(MASK, "")
    words = [word.strip() for word in mask.split(",") if word.strip()]
    if not all(word.isdecimal() for word in words):
        raise DriverFailureError(
            f"{MASK}={mask} names parts of devices; name devices alone, such as 0,1"
        )
    if not words:
        return devices
    chosen = {int(word) for word in words}
    return [device for i, device in enumerate(devices) if i in chosen]


def has_runtime(root: Path) -> bool:
    """Tell whether Level Zero's driver lies where the loader looks."""
    extra = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders = [*LIBRARIES, *(path.lstrip("/") for path in extra if path)]
    return any(any(root.glob(f"{folder}/{RUNTIME}")) for folder in folders)


def _whole(part: Part) -> Part:
    """Return a card as one device."""
    cores, memory = part.cores * part.tiles, part.memory_bytes * part.tiles
    return replace(part, cores=cores, memory_bytes=memory, tiles=1)


def _intel(root: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield Intel's cards: their folder, device id, and the driver bound to them."""
    for card in sorted((root / CARDS).glob("card*")):
        folder = card / "device"
        if not card.name.removeprefix("card").isdecimal() or not (folder / "vendor").is_file():
            continue
        if _hexadecimal(folder / "vendor") == VENDOR:
            driver = folder / "driver"
            name = driver.resolve().name if driver.exists() else "none"
            yield folder, _hexadecimal(folder / "device"), name


def _cards(root: Path) -> Iterator[Gpu]:
    for folder, device_id, driver in _intel(root):
        if device_id in PARTS and driver in DRIVERS:
            nodes = sorted(path.name for path in folder.glob("drm/renderD*"))
            node = f"dev/dri/{nodes[0]}" if nodes else "dev/dri"
            yield Gpu(PARTS[device_id], device_id, folder.resolve().name, driver, node)


def _nothing(root: Path) -> str:
    """Say which Intel GPUs are here that cannot be used."""
    reasons = []
    for _, device_id, driver in _intel(root):
        if device_id not in PARTS:
            reasons.append(f"Intel GPU {device_id:#06x} is none of the parts known here")
        else:
            reasons.append(f"{PARTS[device_id].name} has driver {driver}, not i915 or xe")
    return "; ".join(reasons) or "no Intel GPU"


def _hexadecimal(path: Path) -> int:
    return int(path.read_text(), 16)
