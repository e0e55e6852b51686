"""The platform's own options: `platform_options` of the configuration, checked and typed.

`--platform-options.threads 4`, `.cores 0-3` and `.isa avx2` on the command line.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe_cpu.cores import parse_list

_KINDS: dict[str, tuple[type, ...]] = {"threads": (int,), "cores": (str, int), "isa": (str,)}


@dataclass(frozen=True, slots=True)
class CpuOptions:
    """Options of the CPU platform.

    Attributes:
        threads: Threads of the kernels; None: one per physical core that this process may use.
        cores: Processors to bind them to, one each; empty decides.
        isa: Build of the native kernels; None: the best that this machine runs.
    """

    threads: int | None = None
    cores: tuple[int, ...] = ()
    isa: str | None = None

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
        try:
            return cls(threads, parse_list(cores), values.get("isa"))
        except ValueError:
            raise ConfigError(
                f"platform_options.cores must be a list such as 0-3,8, not {cores!r}"
            ) from None
