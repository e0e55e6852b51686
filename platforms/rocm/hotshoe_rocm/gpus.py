"""Which AMD GPUs this process may use, as plain data. HIP is not initialized; needs no torch.

`amdsmi` describes them where it is installed; the kernel's topology files tell what it leaves open,
and everything where it is missing. Read by the platform's `probe` and `facts`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotshoe_rocm import kfd, smi
from hotshoe_rocm.kfd import Node
from hotshoe_triton.detection import DriverFailureError

#: In the order in which they apply: the runtime hides first, then HIP among what is left. HIP reads
#: the third where the second is not set.
RUNTIME, HIP, COMPATIBLE = "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
#: Lets the runtime take a GPU for another one of its family, as in "11.0.0".
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one partition of it. `uuid` is as ROCm prints it: "GPU-" and 16 digits."""

    name: str
    uuid: str
    arch: str
    memory_bytes: int
    compute_units: int
    driver: str


def gpus(root: Path = Path("/")) -> list[Gpu]:
    """List the GPUs that this process may use, in HIP's order.

    Args:
        root: Of the file system.

    Raises:
        NoDriverError: No AMD GPU, or none with AMD's compute driver.
        DriverFailureError: There is one that this process cannot use or describe.
    """
    nodes = kfd.nodes(root)
    entries = smi.entries()
    found = [_merge(node, entries.get(node.number)) for node in nodes]
    if found and not kfd.usable(root):
        raise DriverFailureError(
            f"{found[0].name} is here, but {kfd.DEVICE} cannot be opened; add this user to the "
            "groups render and video, or hand the device to the container with "
            "--device /dev/kfd --device /dev/dri"
        )
    return visible(visible(found, os.environ.get(RUNTIME)), hip_setting())


def hip_setting() -> str | None:
    """Return which GPUs HIP is told to see among those that the runtime shows; None: all."""
    return os.environ.get(HIP, os.environ.get(COMPATIBLE))


def alone(index: int) -> str:
    """Return the setting of `HIP` that shows only one of the GPUs that are visible now."""
    setting = hip_setting()
    return str(index) if setting is None else words(setting)[index]


def words(setting: str) -> list[str]:
    """Split a list of indices and UUIDs."""
    return [word for word in (part.strip() for part in setting.split(",")) if word]


def visible(every: Sequence[Gpu], setting: str | None) -> list[Gpu]:
    """Apply a list of indices and UUIDs as ROCm does: up to the first that is not there."""
    if setting is None:
        return list(every)
    chosen: list[Gpu] = []
    for word in words(setting):
        if word.isdecimal():
            found = list(every[int(word) : int(word) + 1])
        else:
            found = [gpu for gpu in every if gpu.uuid.lower() == word.lower()]
        if not found:
            break
        chosen += found
    return chosen


def _merge(node: Node, entry: smi.Entry | None) -> Gpu:
    """Describe one GPU; the management library's word counts first, where it has one."""
    entry = entry or smi.Entry()
    arch = overridden(entry.arch or node.arch)
    name = entry.name or node.product or f"AMD {arch} ({node.device_id:#06x})"
    if not (node.memory_bytes or entry.memory_bytes) or not node.compute_units:
        raise DriverFailureError(f"the kernel tells neither memory nor compute units of {name}")
    return Gpu(
        name=name,
        uuid=node.uuid,
        arch=arch,
        # Of a partition the topology tells its own share, the library the whole GPU's.
        memory_bytes=node.memory_bytes or entry.memory_bytes,
        compute_units=node.compute_units,
        driver=entry.driver or node.driver,
    )


def overridden(arch: str) -> str:
    """Return the architecture that the runtime is told to take a GPU for, else its own.

    Raises:
        DriverFailureError: What it is told is not a version.
    """
    setting = os.environ.get(OVERRIDE)
    if setting is None:
        return arch
    parts = setting.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise DriverFailureError(f"{OVERRIDE}={setting} is not a version such as 11.0.0")
    major, minor, step = map(int, parts)
    return kfd.arch_of(major * 10000 + minor * 100 + step)
