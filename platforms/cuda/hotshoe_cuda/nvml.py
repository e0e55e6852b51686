"""What NVML, the driver's management library, says of the GPUs. CUDA is not initialised.

Read by the platform's `probe` and `facts`; needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotshoe_triton.detection import DriverFailureError, NoDriverError

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: FP32 cores per multiprocessor by compute capability; NVML counts cores.
#: Source: CUDA C++ Programming Guide, table of compute capabilities.
CORES_PER_UNIT = {(7, 0): 64, (7, 5): 64, (8, 0): 64}
NEWER_CORES_PER_UNIT = 128


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        capability: (major, minor).
        linked: It reaches the memory of every other GPU here over NVLink, and there is one.
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
        every = [_describe(nvml, handle, handles, driver) for handle in handles]
    return visible(every, os.environ.get(VISIBLE))


def visible(every: list[Gpu], setting: str | None) -> list[Gpu]:
    """Apply `CUDA_VISIBLE_DEVICES` as CUDA does: up to the first bad index or UUID prefix."""
    if setting is None:
        return every
    chosen: list[Gpu] = []
    for word in filter(None, (part.strip() for part in setting.split(","))):
        if word.isdecimal():
            found = every[int(word) : int(word) + 1]
        else:
            found = [gpu for gpu in every if gpu.uuid.startswith(word)][:1]
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


def _describe(nvml: Any, handle: Any, handles: list[Any], driver: str) -> Gpu:
    capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle))
    per_unit = CORES_PER_UNIT.get(capability, NEWER_CORES_PER_UNIT)
    return Gpu(
        name=nvml.nvmlDeviceGetName(handle),
        uuid=nvml.nvmlDeviceGetUUID(handle),
        capability=capability,
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        compute_units=nvml.nvmlDeviceGetNumGpuCores(handle) // per_unit,
        driver=driver,
        linked=_linked(nvml, handle, [other for other in handles if other is not handle]),
    )


def _linked(nvml: Any, handle: Any, others: list[Any]) -> bool:
    try:
        return bool(others) and all(
            nvml.nvmlDeviceGetP2PStatus(handle, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            == nvml.NVML_P2P_STATUS_OK
            for other in others
        )
    except nvml.NVMLError:  # a part without links, or one that does not tell
        return False
