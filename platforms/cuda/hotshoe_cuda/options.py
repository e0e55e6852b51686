"""The platform's own options: `platform_options` of the configuration, checked and typed.

`--platform-options.device 1` and `.memory_fraction 0.8` on the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.errors import ConfigError

_KINDS: dict[str, tuple[type, ...]] = {"device": (int,), "memory_fraction": (int, float)}


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """Options of the CUDA platform.

    Attributes:
        device: Index among the visible GPUs.
        memory_fraction: Share of the GPU's memory that the engine may take in all.
    """

    device: int = 0
    memory_fraction: float = 0.92

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "CudaOptions":
        """Check and take over options.

        Raises:
            ConfigError: An option is unknown or has a bad value.
        """
        for name, value in values.items():
            if name not in _KINDS:
                raise ConfigError(
                    f"platform cuda has no option {name!r}; it has {', '.join(_KINDS)}"
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
