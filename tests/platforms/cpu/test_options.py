"""Options of the platform: accepted, typed, refused by name."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe_cpu.options import CpuOptions


def test_defaults() -> None:
    assert CpuOptions.from_mapping({}) == CpuOptions(None, (), None)


def test_values() -> None:
    options = CpuOptions.from_mapping({"threads": 3, "cores": "0-1,4", "isa": "avx2"})
    assert options == CpuOptions(3, (0, 1, 4), "avx2")
    assert CpuOptions.from_mapping({"cores": 1}).cores == (1,)
    assert CpuOptions.from_mapping({"memory_fraction": 1}).memory_fraction == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"thread": 3}, "no option 'thread'; it has threads, cores, isa, memory_fraction"),
        ({"threads": "3"}, "platform_options.threads cannot be '3'"),
        ({"threads": True}, "platform_options.threads cannot be True"),
        ({"threads": 0}, "platform_options.threads must be positive, not 0"),
        ({"cores": "0-x"}, "must be a list such as 0-3,8, not '0-x'"),
        ({"cores": "3-1"}, "must be a list such as 0-3,8, not '3-1'"),
        ({"cores": "0-99999999999999"}, "must be a list such as 0-3,8"),
        ({"isa": 512}, "platform_options.isa cannot be 512"),
        ({"memory_fraction": 0}, "memory_fraction must be above 0 and at most 1, not 0.0"),
        ({"memory_fraction": 1.1}, "memory_fraction must be above 0 and at most 1, not 1.1"),
        ({"memory_fraction": float("nan")}, "memory_fraction must be above 0"),
    ],
)
def test_refusals(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CpuOptions.from_mapping(values)
