"""The ROCm platform: which AMD GPU this is and which kernels serve it.

Detection goes through the kernel's topology and `amdsmi`; HIP is first touched in `activate`. A
PyTorch built for ROCm calls these devices "cuda".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.errors import PlatformError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate
from hotshoe_rocm import candidates
from hotshoe_rocm.gpus import HIP, RUNTIME, Gpu, alone, gpus
from hotshoe_rocm.targets import SUPPORTED, TARGETS, describe
from hotshoe_triton.gpu import GpuPlatform


class RocmPlatform(GpuPlatform[Gpu]):
    """AMD GPUs of the architectures in `hotshoe_triton.device`."""

    name = "rocm"
    targets = TARGETS
    stack, constant, hides = "ROCm", "hip", f"{RUNTIME} or {HIP}"

    def gpus(self) -> Sequence[Gpu]:
        return gpus(self._root)

    def unfit(self, found: Sequence[Gpu]) -> str:
        return "" if found[0].arch in SUPPORTED else _unsupported(found)

    def facts(self) -> DeviceFacts:
        return describe(self.chosen(), self._options.device)

    def candidates(self) -> Sequence[Candidate]:
        return candidates.offered()

    def taken(self, gpu: Gpu, device: Any) -> Mapping[str, object]:
        import torch

        arch = device.gcnArchName.partition(":")[0]
        if arch != gpu.arch:
            raise PlatformError(
                f"HIP sees a {arch} at cuda:{self._options.device}, where the kernel's topology "
                f"has {gpu.name}, a {gpu.arch}; choose another by {HIP} or platform_options.device"
            )
        return {"hip": torch.version.hip, "driver": gpu.driver}


def _unsupported(found: Sequence[Gpu]) -> str:
    """Say why the first GPU is not served, and whether another would be."""
    first = found[0]
    text = f"{first.name} is a {first.arch}; there are kernels for {', '.join(SUPPORTED)}"
    for i, gpu in enumerate(found):
        if gpu.arch in SUPPORTED:
            return f"{text}; {gpu.name} has them: set {HIP}={alone(i)}"
    return text
