"""Intel's parts by PCI device id, with what a driver says of them once it is asked.

The kernel's files under /sys tell an id and little more, and asking the driver initializes the
device, so the rest is recorded here. Source: Intel's lists of PCI ids; PyTorch's device properties
on such machines, or where a size is a whole number of GiB, the data sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of card.

    Attributes:
        arch: Name of its kind of core, as in `hotshoe_triton.device.INTEL_ARCHS`.
        memory_bytes, cores: Of one tile.
        tiles: Devices that the card is, each with memory of its own.
        fp64: Whether it computes float64.
    """

    name: str
    arch: str
    memory_bytes: int
    cores: int
    tiles: int = 1
    fp64: bool = True


PARTS: dict[int, Part] = {
    0x0BD5: Part("Intel Data Center GPU Max 1550", "pvc", 65_520 * MIB, 64, 2),
    0x0BDA: Part("Intel Data Center GPU Max 1100", "pvc", 48 * GIB, 56),
    0x56A0: Part("Intel Arc A770", "dg2", 15_473 * MIB, 32, fp64=False),
    0x56A1: Part("Intel Arc A750", "dg2", 8 * GIB, 28, fp64=False),
    0xE20B: Part("Intel Arc B580", "bmg", 12 * GIB, 20),
    0xE20C: Part("Intel Arc B570", "bmg", 10 * GIB, 18),
    0xE211: Part("Intel Arc Pro B60", "bmg", 23_256 * MIB, 20),
}
