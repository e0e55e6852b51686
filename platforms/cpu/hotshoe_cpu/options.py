"""The platform's own options: `platform_options` of the configuration, checked and typed.

`--platform-options.threads 4`, `.cores 0-3`, `.isa avx2` and `.memory_fraction 0.7` on the command
line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe_cpu.cores import parse_list

#: Of the memory that is free once weights are loaded; the rest is for activations and the system.
CACHE_SHARE = 0.5
_KINDS: dict[str, tuple[type, ...]] = {
    "threads": (int,),
    "cores": (str, int),
    "isa": (str,),
    "memory_fraction": (int, float),
}


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """Options of the CPU platform.

    Attributes:
        threads: Threads of the kernels; None: one per physical core that this process may use.
        cores: Processors to bind them to, one each; empty decides.
        isa: Build of the native kernels; None: the best that this machine runs.
        memory_fraction: Share of the memory that is free beside the weights, for the KV cache.
    """

    threads: int | None = None
    cores: tuple[int, ...] = ()
    isa: str | None = None
    memory_fraction: float = CACHE_SHARE

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "CpuOptions":
        """Check and take over options; `cores` is a list such as `0-3,8`.

        Raises:
            ConfigError: An option is unknown or has a bad value.
        """
        for name, value in values.items():
            if name not in _KINDS:
                raise ConfigError(
                    f"platform_options: platform cpu has no option {name!r}; "
                    f"it has {', '.join(_KINDS)}"
                )
            if isinstance(value, bool) or not isinstance(value, _KINDS[name]):
                raise ConfigError(f"platform_options.{name} cannot be {value!r}")
        threads, cores = values.get("threads"), str(values.get("cores", ""))
        if threads is not None and threads < 1:
            raise ConfigError(f"platform_options.threads must be positive, not {threads}")
        fraction = float(values.get("memory_fraction", CACHE_SHARE))
        if not 0 < fraction <= 1:
            raise ConfigError(
                f"platform_options.memory_fraction must be above 0 and at most 1, not {fraction}"
            )
        try:
            return cls(threads, parse_list(cores), values.get("isa"), fraction)
        except ValueError:
            raise ConfigError(
                f"platform_options.cores must be a list such as 0-3,8, not {cores!r}"
            ) from None
