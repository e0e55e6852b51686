"""Options that every GPU platform has: `platform_options` of the configuration, checked and typed.

`--platform-options.device 1` and `.memory_fraction 0.8` on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hotshoe.errors import ConfigError

_KINDS: dict[str, tuple[type, ...]] = {
    "device": (int,),
    "memory_fraction": (int, float),
    "kernel_cache": (str,),
}
Gpu = TypeVar("Gpu")


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Options of a GPU platform.

    Attributes:
        device: Index among the visible GPUs.
        memory_fraction: Share of the GPU's memory that the engine may take in all.
        kernel_cache: Folder of compiled kernels; None for Triton's own.
    """

    device: int = 0
    memory_fraction: float = 0.92
    kernel_cache: str | None = None

    @classmethod
    def from_mapping(cls, platform: str, values: Mapping[str, Any]) -> GpuOptions:
        """Check and take over options.

        Raises:
            ConfigError: An option is unknown or has a bad value.
        """
        for name, value in values.items():
            if name not in _KINDS:
                raise ConfigError(
                    f"platform_options: platform {platform} has no option {name!r}; "
                    f"it has {', '.join(_KINDS)}"
                )
            if isinstance(value, bool) or not isinstance(value, _KINDS[name]):
                raise ConfigError(f"platform_options.{name} cannot be {value!r}")
        options = cls(**values)
        if options.device < 0:
            raise ConfigError(f"platform_options.device must not be negative: {options.device}")
        if not 0 < options.memory_fraction <= 1:
            raise ConfigError(
                "platform_options.memory_fraction must be above 0 and at most 1, "
                f"not {options.memory_fraction}"
            )
        return options

    def choose(self, gpus: Sequence[Gpu]) -> Gpu:
        """Return the GPU that is meant.

        Raises:
            ConfigError: There are not so many.
        """
        if self.device >= len(gpus):
            raise ConfigError(
                f"platform_options.device is {self.device}, but {len(gpus)} GPUs are visible"
            )
        return gpus[self.device]

    def for_rank(self, rank: int, size: int, visible: int) -> GpuOptions:
        """Return the options of one of `size` workers, each on the GPU after the one before.

        Raises:
            ConfigError: Not so many GPUs are visible.
        """
        first = self.device
        if first + size > visible:
            raise ConfigError(
                f"{size} ranks need GPUs {first} to {first + size - 1}, but {visible} are visible; "
                f"lower tensor_parallel_size * pipeline_parallel_size to {max(visible - first, 1)}"
            )
        return replace(self, device=first + rank)
