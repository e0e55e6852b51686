"""The memory budget, of a device that says what a test wants."""

import types

import pytest

from hotshoe_triton import memory

GIB = 1 << 30


@pytest.fixture
def device() -> types.SimpleNamespace:
    """80 GiB, of which 16 are ours at most, 14 now, and 10 cannot be had: others', or reserved."""
    calls: list[str] = []
    return types.SimpleNamespace(
        calls=calls,
        memory_stats=lambda: {"allocated_bytes.all.peak": 16 * GIB},
        empty_cache=lambda: calls.append("empty_cache"),
        mem_get_info=lambda: (56 * GIB, 80 * GIB),
        memory_allocated=lambda: 14 * GIB,
        reset_peak_memory_stats=lambda: calls.append("reset"),
    )


def test_what_is_left(device) -> None:
    found = memory.budget(device, 0.9)
    assert found.available_bytes == (72 - 16 - 10) * GIB
    assert found.note == (
        "90% of 80.0 GiB, less 16.0 GiB for weights and the largest step and 10.0 GiB taken "
        "otherwise"
    )
    assert device.calls == ["empty_cache"], "what is reserved and unused is not others'"


def test_engines_before_do_not_count(device) -> None:
    memory.start(device)
    assert device.calls == ["reset"]


def test_nothing_is_left(device) -> None:
    assert memory.budget(device, 0.2).available_bytes == 0
