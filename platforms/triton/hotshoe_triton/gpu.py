"""What GPU platforms do alike: the course of detection, options, defaults, taking the device.

A vendor's platform says which GPUs there are, which of them it serves, and what must hold of the
device once it is taken. Nothing here touches a device before `activate`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from hotshoe.config import EngineConfig
from hotshoe.errors import PlatformError
from hotshoe.platform import Absent, Available, Broken, Change, Detection, MemoryBudget, Platform
from hotshoe_triton.detection import DriverFailureError, NoDriverError
from hotshoe_triton.options import GpuOptions
from hotshoe_triton.torch_build import torch_build

if TYPE_CHECKING:
    from types import ModuleType

SCORE = 100
BLOCK_SIZE = 32
TOKEN_BUDGET = 8192


class Named(Protocol):
    """A GPU as its vendor's module describes it."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...


G = TypeVar("G", bound=Named)


class GpuPlatform(Platform, Generic[G]):
    """A vendor's GPUs.

    Args:
        root: Of the file system that tells what is here.

    Attributes:
        stack: The vendor's software, as people call it.
        constant: What `torch/version.py` sets where PyTorch was built for it.
        hides: The environment variables by which GPUs are hidden.
    """

    asynchronous = True
    measures_memory = True
    cluster_resources = MappingProxyType({"GPU": 1.0})
    stack: ClassVar[str]
    constant: ClassVar[str]
    hides: ClassVar[str]

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._options = GpuOptions()
        self._ranks = 1

    @abstractmethod
    def gpus(self) -> Sequence[G]:
        """List the GPUs that this process may use, in the order of the vendor's runtime.

        Raises:
            NoDriverError: There is none that could compute.
            DriverFailureError: There is one, and something that it needs fails.
        """

    def unfit(self, found: Sequence[G]) -> str:
        """Say why the first of these GPUs is not served; "" if it is."""
        return ""

    @abstractmethod
    def taken(self, gpu: G, device: Any) -> Mapping[str, object]:
        """Prepare the device that was just taken.

        Args:
            gpu: As it was detected.
            device: Its properties, as PyTorch has them.

        Returns:
            What to report.

        Raises:
            PlatformError: PyTorch has another device there than was detected.
        """

    def probe(self) -> Detection:
        try:
            found = self.gpus()
        except NoDriverError as error:
            return Absent(str(error))
        except DriverFailureError as error:
            return Broken(str(error))
        if not found:
            return Absent(f"no GPU is visible ({self.hides} hides all, or there is none)")
        unfit = self.unfit(found)
        if unfit:
            return Absent(unfit)
        build = torch_build()
        if build.get(self.constant) is None:
            return Broken(
                f"{found[0].name} is here, but torch {build.get('__version__', 'none')} was built "
                f"without {self.stack}; install the {self.stack} build of torch"
            )
        return Available(SCORE)

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
        self._options = self._options.for_rank(rank, size, len(self.gpus()))
        self._ranks = size

    def chosen(self) -> G:
        """Return the GPU that the options mean.

        Raises:
            ConfigError: There are not so many.
        """
        return self._options.choose(self.gpus())

    def activate(self, config: EngineConfig) -> Mapping[str, object]:
        import torch

        from hotshoe_triton import memory, preparing
        from hotshoe_triton.compiled import keep_compiled

        preparing.begin()
        gpu, index = self.chosen(), self._options.device
        unfit = self.unfit([gpu])
        if unfit:
            raise PlatformError(f"{unfit}; choose another by platform_options.device, not {index}")
        module: ModuleType = torch.get_device_module(self.facts().device)
        module.set_device(index)
        module.init()
        memory.start(module)
        kept = keep_compiled(self._options.kernel_cache)
        return {**self.taken(gpu, module.get_device_properties(index)), "kernel cache": kept}

    def rehearsal(self) -> AbstractContextManager[Callable[[], bool]]:
        """See `hotshoe.platform.Rehearsing`."""
        from hotshoe_triton.rehearsal import rehearsal

        return rehearsal(self._options.device, self._ranks)

    def prepare(self) -> None:
        """See `hotshoe.platform.Preparing`."""
        from hotshoe_triton.preparing import prepare

        prepare()

    def memory_budget(self, config: EngineConfig) -> MemoryBudget:
        """Leave what the largest step needed beside the weights."""
        import torch

        from hotshoe_triton import memory

        module = torch.get_device_module(self.facts().device)
        return memory.budget(module, self._options.memory_fraction)

    def release_memory(self) -> None:
        import torch

        torch.get_device_module(self.facts().device).empty_cache()
