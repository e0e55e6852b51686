"""What NVML, the driver's management library, says of the GPUs. CUDA is not initialized.

Read by the platform's `probe` and `facts`; needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from hotshoe_triton.detection import DriverFailureError, NoDriverError

VISIBLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
#: What the UUIDs of instances (MIG) begin with.
INSTANCE = "MIG-"
#: FP32 cores per multiprocessor by compute capability; NVML counts cores.
#: Source: CUDA C++ Programming Guide, table of compute capabilities.
CORES_PER_UNIT = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
NEWER_CORES_PER_UNIT = 128


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one instance (MIG) of a divided one.

    Attributes:
        capability: (major, minor).
        linked: It reaches the memory of every other GPU here over NVLink, and this process sees
            one.
    """

    name: str
    uuid: str
    capability: tuple[int, int]
    memory_bytes: int
    compute_units: int
    driver: str
    linked: bool = False


def gpus() -> list[Gpu]:
    """List the GPUs that this process may use, in CUDA's order.

    Raises:
        NoDriverError: No driver.
        DriverFailureError: It does not work.
    """
    with _library() as nvml:
        driver = nvml.nvmlSystemGetDriverVersion()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        every = [_parts(nvml, handle, handles, driver) for handle in handles]
    found = visible(every, os.environ.get(VISIBLE))
    # Another process cannot open the memory of a GPU that it does not see.
    return found if len(found) > 1 else [replace(gpu, linked=False) for gpu in found]


def visible(every: Sequence[Sequence[Gpu]], setting: str | None) -> list[Gpu]:
    """Apply `CUDA_VISIBLE_DEVICES` as CUDA does: up to the first bad index or UUID prefix.

    Of instances it shows a process the first alone, and then no whole GPU.
    Source: NVIDIA Multi-Instance GPU User Guide, section "CUDA_VISIBLE_DEVICES".

    Args:
        every: Of each GPU, itself or its instances.
        setting: The variable's value; None where it is not set.
    """
    chosen = [gpu for parts in every for gpu in parts]
    if setting is not None:
        chosen = _named(every, [word.strip() for word in setting.split(",") if word.strip()])
    instances = [gpu for gpu in chosen if gpu.uuid.startswith(INSTANCE)]
    return instances[:1] or chosen


def _named(every: Sequence[Sequence[Gpu]], words: Sequence[str]) -> list[Gpu]:
    chosen: list[Gpu] = []
    for word in words:
        if word.isdecimal():
            found = [gpu for parts in every[int(word) :][:1] for gpu in parts]
        else:
            found = [gpu for parts in every for gpu in parts if gpu.uuid.startswith(word)][:1]
        if not found:
            break
        chosen += found
    return chosen


@contextmanager
def _library() -> Iterator[Any]:
    try:
        import pynvml
    except ImportError as error:
        raise DriverFailureError(f"{error}; install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        raise NoDriverError(f"no NVIDIA driver ({error})") from None
    except pynvml.NVMLError as error:
        raise DriverFailureError(f"the NVIDIA driver does not answer: {error}") from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise DriverFailureError(f"the NVIDIA driver does not describe its GPUs: {error}") from None
    finally:
        pynvml.nvmlShutdown()


def _parts(nvml: Any, handle: Any, handles: Sequence[Any], driver: str) -> list[Gpu]:
    """Describe a GPU, or the instances into which it is divided.

    Of a divided one NVML tells the memory to administrators alone.
    """
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))

    def describe(part: Any, units: int, linked: bool) -> Gpu:
        return Gpu(
            name=nvml.nvmlDeviceGetName(part),
            uuid=nvml.nvmlDeviceGetUUID(part),
            capability=capability,
            memory_bytes=_memory_bytes(nvml, part),
            compute_units=units,
            driver=driver,
            linked=linked,
        )

    if _divided(nvml, handle):
        return [
            describe(part, nvml.nvmlDeviceGetAttributes_v2(part).multiprocessorCount, False)
            for part in _instances(nvml, handle)
        ]
    units = nvml.nvmlDeviceGetNumGpuCores(handle) // CORES_PER_UNIT.get(
        capability, NEWER_CORES_PER_UNIT
    )
    others = [other for other in handles if other is not handle]
    return [describe(handle, units, _linked(nvml, handle, others))]


def _memory_bytes(nvml: Any, part: Any) -> int:
    """Return a part's memory; one that has none of its own, as GB10, shares the machine's."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(part).total)
    except nvml.NVMLError_NotSupported:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _divided(nvml: Any, handle: Any) -> bool:
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError:  # a part that cannot be divided, or a driver that does not tell
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _instances(nvml: Any, handle: Any) -> Iterator[Any]:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        with suppress(nvml.NVMLError_NotFound):  # places for instances may be empty
            yield nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)


def _linked(nvml: Any, handle: Any, others: list[Any]) -> bool:
    try:
        return bool(others) and all(
            nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
            for other in others
        )
    except nvml.NVMLError:  # a part without links, or one that does not tell
        return False
