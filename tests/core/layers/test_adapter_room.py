"""Bytes of adapters, in host memory and on the device."""

import pytest
import torch

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.adapter_room import DeviceRoom, HostRoom
from hotshoe.platform import DeviceFacts


def test_adapters_take_no_more_than_they_may() -> None:
    room = HostRoom(10)
    room.check("a", 10)
    room.book("a", 6)
    room.check("b", 4)
    room.check("a", 10)  # in place of itself
    with pytest.raises(MemoryLimitError, match=r"'b' takes .* of 1 others"):
        room.check("b", 5)
    room.drop("a")
    room.drop("a")
    room.check("b", 10)
    assert room.taken == 0


def test_without_a_limit_all_fit() -> None:
    HostRoom(None).check("a", 1 << 60)


def test_places_are_counted_before_they_are_written() -> None:
    facts = DeviceFacts("cpu", "cpu", "Chip", "any", memory_bytes=100, compute_units=1)
    free = [100]
    room = DeviceRoom(lambda: free[0])
    place = torch.full((15,), torch.nan)
    room.take(place.nbytes, facts)
    room.write_later(place)
    with pytest.raises(MemoryLimitError, match=r"or more, but Chip has .* lower --max-loras"):
        room.take(41, facts)  # although nothing was written
    room.take(40, facts)
    room.write()
    assert not place.any()
    room.take(-40, facts)
    free[0] = 30  # as what is written is not free
    with pytest.raises(MemoryLimitError):
        room.take(31, facts)
    room.take(30, facts)
    assert room.taken == 90
    free[0] = 100
    with pytest.raises(MemoryLimitError):
        room.take(11, facts)  # more than there is in all


def test_a_device_of_known_size_alone() -> None:
    facts = DeviceFacts("cpu", "cpu", "Chip", "any", memory_bytes=100, compute_units=1)
    room = DeviceRoom()
    room.take(100, facts)
    with pytest.raises(MemoryLimitError):
        room.take(1, facts)
