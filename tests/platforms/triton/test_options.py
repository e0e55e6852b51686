"""Options that all GPU platforms have."""

import pytest

from hotshoe.errors import ConfigError
from hotshoe_triton.options import GpuOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"devices": 1},
            "platform p has no option 'devices'; it has device, memory_fraction, kernel_cache",
        ),
        ({"device": -1}, "must not be negative"),
        ({"device": True}, "cannot be True"),
        ({"device": "0"}, "cannot be '0'"),
        ({"memory_fraction": 0}, "above 0"),
        ({"memory_fraction": 1.5}, "at most 1"),
        ({"memory_fraction": float("nan")}, "at most 1"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GpuOptions.from_mapping("p", options)


def test_good_options() -> None:
    assert GpuOptions.from_mapping("p", {}) == GpuOptions(0, 0.92)
    assert GpuOptions.from_mapping("p", {"device": 3, "memory_fraction": 1}) == GpuOptions(3, 1)


def test_the_gpu_that_is_meant() -> None:
    assert GpuOptions(1).choose("abc") == "b"
    with pytest.raises(ConfigError, match="device is 1, but 1 GPUs are visible"):
        GpuOptions(1).choose("a")


def test_ranks_follow_each_other() -> None:
    assert [GpuOptions(2).for_rank(rank, 3, 5).device for rank in range(3)] == [2, 3, 4]
    with pytest.raises(ConfigError, match=r"need GPUs 2 to 4, but 4 are visible; lower .* to 2"):
        GpuOptions(2).for_rank(0, 3, 4)
