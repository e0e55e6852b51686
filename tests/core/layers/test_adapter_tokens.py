"""Which adapter each token has: recorded steps read it where it was sent, whatever was there."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotshoe.layers.adapter_tokens import Heads, TokenPlaces

PLACES, RECORDED = 3, 8


def staging(arrays: Sequence[np.ndarray], memory: dict[tuple[int, ...], list[Tensor]]):
    """Copy arrays to memory that those of equal shapes share."""
    sizes = tuple(len(array) for array in arrays)
    found = memory.setdefault(sizes, [torch.empty(n, dtype=torch.int32) for n in sizes])
    for target, array in zip(found, arrays, strict=True):
        target.copy_(torch.from_numpy(array))
    return found


def test_recordings_read_what_was_sent_last() -> None:
    memory: dict[tuple[int, ...], list[Tensor]] = {}
    tokens = TokenPlaces(PLACES, RECORDED, lambda arrays: staging(arrays, memory))
    recorded = tokens.recorded(6)
    assert recorded.places.tolist() == [-1] * 6
    for _ in range(20):
        count = int(torch.randint(1, 7, ()))
        places = torch.randint(-1, PLACES, (count,), dtype=torch.int32).numpy()
        sent = tokens(places)
        assert sent.places.tolist() == places.tolist()
        assert sorted(sent.used) == sorted({*places.tolist()} - {-1})
        assert recorded.places.tolist() == [*places.tolist(), *[-1] * (6 - count)]
        for place in range(PLACES):
            first, end = recorded.starts[place : place + 2].tolist()
            own = np.flatnonzero(places == place).tolist()
            assert recorded.order[first:end].tolist() == own
    assert list(recorded.used) == list(range(PLACES))


def test_steps_that_are_not_recorded_may_be_longer() -> None:
    memory: dict[tuple[int, ...], list[Tensor]] = {}
    tokens = TokenPlaces(PLACES, RECORDED, lambda arrays: staging(arrays, memory))
    places = np.array([2, -1, 0] * 5, np.int32)
    sent = tokens(places)
    assert sent.places.tolist() == places.tolist()
    assert sorted(sent.order.tolist()) == list(range(15))
    assert sent.starts.tolist() == [0, 5, 5, 10]


def test_a_recording_begins_without_adapters() -> None:
    memory: dict[tuple[int, ...], list[Tensor]] = {}
    tokens = TokenPlaces(PLACES, RECORDED, lambda arrays: staging(arrays, memory))
    tokens(np.array([2, 0, 1], np.int32))
    tokens.clear()
    recorded = tokens.recorded(2)
    assert recorded.places.tolist() == [-1] * 2
    assert recorded.starts.tolist() == [0] * (PLACES + 1)


def test_the_first_layer_arranges_the_tokens_of_a_recording_each_time() -> None:
    """A device runs a step once, then records it, with tokens that are sent to the same place."""
    memory: dict[tuple[int, ...], list[Tensor]] = {}
    tokens = TokenPlaces(PLACES, RECORDED, lambda arrays: staging(arrays, memory))
    recorded, heads = tokens.recorded(2), Heads(2, PLACES, torch.empty(0))
    heads.of(recorded, is_first=True)
    tokens(np.array([2, 0], np.int32))
    first, other = (heads.of(recorded, is_first) for is_first in (True, False))
    assert first.by_adapter.places.tolist() == [2, 2, 0, 0]
    assert first.by_head.places.tolist() == [4, 5, 0, 1]
    assert other is first
