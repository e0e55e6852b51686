"""The CUDA platform: which GPU this is and which kernels serve it.

Detection goes through NVML; CUDA itself is first touched in `activate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe.errors import PlatformError
from hotshoe.platform import DeviceFacts
from hotshoe.slots import Candidate
from hotshoe_cuda import candidates, nvml
from hotshoe_cuda.nvml import Gpu
from hotshoe_cuda.targets import TARGETS, describe
from hotshoe_triton.gpu import GpuPlatform

#: The oldest generation that the kernels are compiled for.
OLDEST = (8, 0)


class CudaPlatform(GpuPlatform[Gpu]):
    """NVIDIA GPUs of compute capability 8.0 and newer."""

    name = "cuda"
    targets = TARGETS
    stack, constant, hides = "CUDA", "cuda", nvml.VISIBLE

    def gpus(self) -> Sequence[Gpu]:
        return nvml.gpus()

    def unfit(self, found: Sequence[Gpu]) -> str:
        served = [gpu for gpu in found if gpu.capability >= OLDEST]
        if found[0] in served:
            return ""
        other = f"; {served[0].name} is not: set {nvml.VISIBLE}={served[0].uuid}" if served else ""
        return f"{found[0].name} is older than compute capability 8.0{other}"

    def facts(self) -> DeviceFacts:
        return describe(self.chosen(), self._options.device)

    def candidates(self) -> Sequence[Candidate]:
        return candidates.offered()

    def taken(self, gpu: Gpu, device: Any) -> Mapping[str, object]:
        import torch

        if (device.major, device.minor) != gpu.capability:
            major, minor = gpu.capability
            raise PlatformError(
                f"CUDA has {device.name} at cuda:{self._options.device}, where NVML has {gpu.name} "
                f"of compute capability {major}.{minor}; set {nvml.ORDER}=PCI_BUS_ID, so that both "
                "count GPUs alike"
            )
        # Where a library splits a product, its parts are added in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        return {"cuda": torch.version.cuda, "driver": gpu.driver}
