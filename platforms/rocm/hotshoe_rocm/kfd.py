"""What the Linux kernel says of AMD GPUs: the topology of its compute driver, KFD, under /sys.

Source: Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotshoe_triton.detection import DriverFailureError, NoDriverError

DEVICE = "/dev/kfd"
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"
CARDS = "sys/class/drm"
VENDOR = 0x1002
#: Kinds of memory banks that lie on the GPU: visible to the host, and not.
OWN_HEAPS = (1, 2)


@dataclass(frozen=True, slots=True)
class Node:
    """One GPU, or one partition of it.

    Attributes:
        number: Of the node; HIP counts in this order.
        product: The board's name, "" where the kernel does not know it.
    """

    number: int
    arch: str
    uuid: str
    device_id: int
    compute_units: int
    memory_bytes: int
    product: str
    driver: str


def nodes(root: Path) -> list[Node]:
    """List the GPUs that this process may see.

    Raises:
        NoDriverError: There is none.
        DriverFailureError: A GPU's driver does not compute.
    """
    folder = root / TOPOLOGY
    if not folder.is_dir():
        raise _without_topology(root)
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    found = [node for number in numbers for node in _read(root, number)]
    if not found:
        raise NoDriverError("no AMD GPU (the kernel's topology lists none that may be seen)")
    return found


def usable(root: Path) -> bool:
    """Tell whether this process may open the compute driver."""
    return os.access(root / DEVICE.removeprefix("/"), os.R_OK | os.W_OK)


def arch_of(version: int) -> str:
    """Name an architecture: 90402 is gfx942, 90010 gfx90a, 110000 gfx1100."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _without_topology(root: Path) -> Exception:
    """Say why there is no topology: no GPU, or a driver that does not compute."""
    for card in sorted((root / CARDS).glob("card[0-9]*")):
        vendor = card / "device" / "vendor"
        if vendor.is_file() and int(vendor.read_text(), 16) == VENDOR:
            driver = card / "device" / "driver"
            name = driver.resolve().name if driver.exists() else "none"
            if name == "amdgpu":
                return DriverFailureError(
                    f"{card.name} is an AMD GPU, but its driver offers no {DEVICE}; install the "
                    "amdgpu driver of ROCm, or a kernel built with HSA_AMD"
                )
            return NoDriverError(f"{card.name} is an AMD GPU with driver {name}, not amdgpu")
    return NoDriverError("no AMD GPU")


def _read(root: Path, number: int) -> Iterator[Node]:
    """Yield the node if it is a GPU; one that a container hides cannot be read."""
    folder = root / TOPOLOGY / str(number)
    try:
        values = properties(folder / "properties")
    except PermissionError:
        return
    version = values.get("gfx_target_version", 0)
    if not version:
        return
    banks = [properties(path / "properties") for path in (folder / "mem_banks").glob("*")]
    board = root / CARDS / f"renderD{values.get('drm_render_minor', 0)}" / "device"
    yield Node(
        number=number,
        arch=arch_of(version),
        uuid=f"GPU-{values.get('unique_id', 0):016x}",
        device_id=values.get("device_id", 0),
        compute_units=values.get("simd_count", 0) // max(values.get("simd_per_cu", 1), 1),
        memory_bytes=sum(
            b.get("size_in_bytes", 0) for b in banks if b.get("heap_type") in OWN_HEAPS
        ),
        product=_text(board / "product_name"),
        driver=_text(root / "sys/module/amdgpu/version") or "of the kernel",
    )


def properties(path: Path) -> dict[str, int]:
    """Read lines of a name and a number; others are not for us."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdecimal()}


def _text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""
