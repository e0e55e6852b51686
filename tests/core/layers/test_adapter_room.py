"""Bytes of adapters in host memory."""

import pytest

from hotshoe.errors import MemoryLimitError
from hotshoe.layers.adapter_room import HostRoom


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
