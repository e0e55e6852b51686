"""The ROCm platform: which AMD GPU this is, how much of its memory is free, which kernels serve it.

Detection goes through the kernel's topology and `amdsmi`; HIP is first touched in `activate`. A
PyTorch built for ROCm calls these devices "cuda".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from hotshoe.config import EngineConfig
from hotshoe.errors import PlatformError
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
from hotshoe_rocm import candidates
from hotshoe_rocm.gpus import HIP, RUNTIME, Gpu, gpus
from hotshoe_rocm.targets import SUPPORTED, TARGETS, describe
from hotshoe_triton.detection import DriverFailureError, NoDriverError
from hotshoe_triton.options import GpuOptions
from hotshoe_triton.torch_build import torch_build

SCORE = 100
BLOCK_SIZE = 32
TOKEN_BUDGET = 8192


class RocmPlatform(Platform):
    """AMD GPUs of the architectures in `hotshoe_triton.device`.

    Args:
        root: Of the file system that tells what is here.
    """

    name = "rocm"
    asynchronous = True
    measures_memory = True
    targets = TARGETS

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._options = GpuOptions()

    def probe(self) -> Detection:
        try:
            found = gpus(self._root)
        except NoDriverError as error:
            return Absent(str(error))
        except DriverFailureError as error:
            return Broken(str(error))
        if not found:
            return Absent(f"no GPU is visible ({RUNTIME} or {HIP} hides all)")
        if found[0].arch not in SUPPORTED:
            return Absent(_unsupported(found))
        build = torch_build()
        if build.get("hip") is None:
            version = build.get("__version__", "none")
            return Broken(
                f"{found[0].name} is here, but torch {version} was built without ROCm; "
                "install the ROCm build of torch"
            )
        return Available(SCORE)

    def facts(self) -> DeviceFacts:
        return describe(self._options.choose(gpus(self._root)), self._options.device)

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
        self._options = self._options.for_rank(rank, size, len(gpus(self._root)))

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        import torch

        from hotshoe_triton import memory

        facts = self.facts()
        torch.cuda.set_device(self._options.device)
        torch.cuda.init()
        memory.start()
        properties = torch.cuda.get_device_properties(self._options.device)
        arch = properties.gcnArchName.partition(":")[0]
        if arch != facts.arch:
            raise PlatformError(
                f"HIP sees a {arch} at {facts.device}, where the kernel's topology has "
                f"{facts.name}, a {facts.arch}; choose another by {HIP} or platform_options.device"
            )
        driver = self._options.choose(gpus(self._root)).driver
        return {"hip": torch.version.hip, "driver": driver}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        """Leave what the largest step needed beside the weights."""
        from hotshoe_triton import memory

        return memory.budget(self._options.memory_fraction)


def _unsupported(found: Sequence[Gpu]) -> str:
    """Say why the first GPU is not served, and whether another would be."""
    first = found[0]
    text = f"{first.name} is a {first.arch}; there are kernels for {', '.join(SUPPORTED)}"
    for i, gpu in enumerate(found):
        if gpu.arch in SUPPORTED:
            return f"{text}; {gpu.name} has them: set {HIP}={i}"
    return text
