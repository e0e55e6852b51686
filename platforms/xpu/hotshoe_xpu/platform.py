"""The XPU platform: which Intel GPU this is, how much of its memory is free, what serves it.

Detection goes through the kernel's files; the device is first touched in `activate`.
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
from hotshoe_triton.detection import DriverFailureError, NoDriverError
from hotshoe_triton.options import GpuOptions
from hotshoe_triton.torch_build import torch_build
from hotshoe_xpu import candidates
from hotshoe_xpu.sysfs import MASK, gpus
from hotshoe_xpu.targets import TARGETS, describe

SCORE = 100
BLOCK_SIZE = 32
TOKEN_BUDGET = 8192


class XpuPlatform(Platform):
    """Intel GPUs of the parts in `parts.py`.

    Args:
        root: Of the file system that tells what is here.
    """

    name = "xpu"
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
            return Absent(f"no GPU is visible ({MASK} hides all)")
        build = torch_build()
        if build.get("xpu") is None:
            version = build.get("__version__", "none")
            return Broken(
                f"{found[0].part.name} is here, but torch {version} was built without XPU; "
                "install the XPU build of torch"
            )
        return Available(SCORE)

    def facts(self) -> DeviceFacts:
        part = self._options.choose(gpus(self._root)).part
        return describe(part, self._options.device, candidates.has_triton())

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

        gpu = self._options.choose(gpus(self._root))
        torch.xpu.set_device(self._options.device)
        torch.xpu.init()
        found = torch.xpu.get_device_properties(self._options.device)
        if found.device_id != gpu.device_id:
            raise PlatformError(
                f"PyTorch sees {found.name} at xpu:{self._options.device}, where the kernel has "
                f"{gpu.part.name}; choose another by {MASK} or platform_options.device"
            )
        return {"xpu": torch.version.xpu, "driver": found.driver_version, "kernel": gpu.driver}

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        """Leave what the largest step needed beside the weights."""
        from hotshoe_triton import memory

        return memory.budget(self._options.memory_fraction)
