"""The CUDA platform: which GPU this is, how much of its memory is free, which kernels serve it.

Detection goes through NVML; CUDA itself is first touched in `activate`.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence

from hotshoe.config import EngineConfig
from hotshoe.platform import (
    Absent,
    Available,
    Broken,
    Change,
    Detection,
    DeviceFacts,
    MemoryBudget,
    Platform,
)
from hotshoe.slots import Candidate
from hotshoe_cuda import candidates, nvml
from hotshoe_cuda.targets import TARGETS, describe
from hotshoe_triton.options import GpuOptions

SCORE = 100
BLOCK_SIZE = 32
TOKEN_BUDGET = 8192
#: The oldest generation that the kernels are compiled for.
OLDEST = (8, 0)


class CudaPlatform(Platform):
    """NVIDIA GPUs of compute capability 8.0 and newer."""

    name = "cuda"
    asynchronous = True
    measures_memory = True
    targets = TARGETS

    def __init__(self) -> None:
        self._options = GpuOptions()

    def probe(self) -> Detection:
        try:
            gpus = nvml.gpus()
        except nvml.NoDriverError as error:
            return Absent(str(error))
        except nvml.DriverFailureError as error:
            return Broken(str(error))
        if not gpus:
            return Absent(f"no GPU is visible ({nvml.VISIBLE} hides all, or there is none)")
        if gpus[0].capability < OLDEST:
            return Absent(f"{gpus[0].name} is older than compute capability 8.0")
        version = importlib.metadata.version("torch")
        if "+cpu" in version:
            return Broken(
                f"{gpus[0].name} is here, but torch {version} was built without CUDA; "
                "install the CUDA build of torch"
            )
        return Available(SCORE)

    def facts(self) -> DeviceFacts:
        return describe(self._options.choose(nvml.gpus()), self._options.device)

    def candidates(self) -> Sequence[Candidate]:
        return candidates.offered()

    def resolve(self, config: EngineConfig) -> Sequence[Change]:
        self._options = GpuOptions.from_mapping(self.name, config.platform_options)
        changes = []
        if config.block_size is None:
            changes.append(Change("block_size", BLOCK_SIZE, "the attention kernels' tiles"))
        if config.max_num_batched_tokens is None:
            reason = "a prefill of this size keeps the GPU busy"
            changes.append(Change("max_num_batched_tokens", TOKEN_BUDGET, reason))
        return changes

    def take_part(self, rank: int, size: int) -> None:
        """Take the GPU that lies `rank` places behind `platform_options.device`."""
        self._options = self._options.for_rank(rank, size, len(nvml.gpus()))

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        import torch

        from hotshoe_triton import memory

        torch.cuda.set_device(self._options.device)
        torch.cuda.init()
        memory.start()
        # Where a library splits a product, its parts are added in float32.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        return {"cuda": torch.version.cuda, "driver": nvml.gpus()[self._options.device].driver}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        from hotshoe_triton import memory

        return memory.budget(self._options.memory_fraction)
