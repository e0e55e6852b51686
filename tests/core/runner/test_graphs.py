"""Which recording a step runs in, and what happens between recorded pieces."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from hotshoe.layers.context import Attend
from hotshoe.platform import DeviceFacts
from hotshoe.runner.graphs import (
    BATCH_SIZES,
    MORE_TOKENS,
    TOKEN_SIZES,
    Pieces,
    Recordings,
    graph_sizes,
    token_sizes,
)
from hotshoe.slots import CacheView, GraphSpec, StepShape
from hotshoe.slots.reference.graph import Graph

FACTS = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 5, 17, 64, 200, 256, 511, 512, 4096])
def test_sizes_cover_every_batch_up_to_512_with_little_padding(max_num_seqs: int) -> None:
    sizes = graph_sizes(max_num_seqs)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(max_num_seqs, 512)
    assert len(sizes) <= 24
    for n in range(1, sizes[-1] + 1):
        size = min(s for s in sizes if s >= n)
        assert size < 2 * n
        assert size - n < 32


@pytest.mark.parametrize("max_tokens", [1, 31, 32, 33, 100, 511, 512, 8192])
def test_few_sizes_cover_every_step_up_to_512_tokens(max_tokens: int) -> None:
    sizes = graph_sizes(max_tokens, TOKEN_SIZES)
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(max_tokens, 512)
    assert len(sizes) <= 9
    assert max(b - a for a, b in zip((0, *sizes), sizes, strict=False)) <= 64


@pytest.mark.parametrize(
    ("budget", "channels", "every", "largest"),
    [
        (8192, 256, False, 4096),
        (8192, 896, False, 2304),
        (8192, 2048, False, 1024),
        (8192, 3072, False, 640),
        (8192, 4096, False, 512),
        (8192, 16384, False, 512),
        (1000, 896, False, 1000),
        (8192, 896, True, 512),
        (100, 896, True, 100),
    ],
)
def test_longer_steps_of_narrow_models_are_recorded(
    budget: int, channels: int, every: bool, largest: int
) -> None:
    sizes = token_sizes(budget, channels, every)
    assert sizes[-1] == largest
    assert list(sizes) == sorted(set(sizes))
    # Beyond 512 tokens less than a quarter is padding.
    assert all(4 * (b - a - 1) < b for a, b in pairwise(sizes) if b > 512)


@pytest.mark.parametrize("sizes", [BATCH_SIZES, (*TOKEN_SIZES, *MORE_TOKENS)])
def test_sizes_ascend(sizes: tuple[int, ...]) -> None:
    assert list(sizes) == sorted(set(sizes))


def test_a_step_runs_in_the_smallest_recording_that_holds_it() -> None:
    recordings = Recordings((2, 4, 8))
    assert recordings.size_for(3) is None  # nothing is recorded yet
    for size in reversed(recordings.sizes):
        recordings.keep(size, lambda size=size: torch.full((size,), float(size)))
    assert [recordings.size_for(n) for n in (1, 2, 3, 4, 5, 8, 9)] == [2, 2, 4, 4, 8, 8, None]
    assert recordings.replay(4).tolist() == [4.0] * 4


def test_what_is_not_recorded_runs_in_what_is() -> None:
    recordings = Recordings((1, 2, 4, 8))
    for size in (8, 4):
        recordings.keep(size, lambda size=size: torch.full((size,), float(size)))
    assert [recordings.size_for(n) for n in (1, 2, 5, 9)] == [4, 4, 8, None]


NONE = torch.zeros(0, dtype=torch.int32)
SHAPE = StepShape(0, NONE, NONE, 0, 0)


def views(num_tokens: int) -> list[CacheView]:
    none = torch.zeros(num_tokens, dtype=torch.int32)
    return [CacheView(none, none, num_tokens)]


def test_attention_between_pieces_sees_the_steps_own_tokens_alone() -> None:
    x = torch.zeros(8, 2, 3)
    seen = []

    def attend(q: torch.Tensor, shape: Sequence[CacheView]) -> torch.Tensor:
        seen.append((q.tolist(), shape))
        return (q + 1).flatten(1)

    def step(between) -> torch.Tensor:
        return between(between(x * 2, attend).view(8, 2, 3), attend)

    pieces = Pieces(Graph(GraphSpec(4, pieces=True), FACTS), 8)
    pieces.shape, pieces.views = SHAPE, views(1)
    replay = pieces.record(step)
    seen.clear()
    for num_tokens, value in ((5, 1.0), (8, 2.0), (1, 3.0)):
        x.fill_(value)
        pieces.views = views(num_tokens)
        out = replay()
        assert out.shape == (8, 6)
        assert (out[:num_tokens] == 2 * value + 2).all()
        assert out.isfinite().all()
        (first, shape), (second, same) = seen
        assert first == [[[2 * value] * 3] * 2] * num_tokens
        assert second == [[[2 * value + 1] * 3] * 2] * num_tokens
        assert shape is same is pieces.views
        seen.clear()


def test_a_result_may_be_wider_or_narrower_than_q() -> None:
    x = torch.zeros(8, 2, 3)

    def step(between) -> torch.Tensor:
        wide = between(x, lambda q, shape: q.flatten(1).repeat(1, 2) + 1, 12)
        return between(wide.view(8, 2, 6), lambda q, shape: q[:, :, 0] * 2, 2)

    pieces = Pieces(Graph(GraphSpec(4, pieces=True), FACTS), 8)
    pieces.shape, pieces.views = SHAPE, views(1)
    replay = pieces.record(step)
    x.fill_(3.0)
    pieces.views = views(5)
    out = replay()
    assert out.shape == (8, 2) and (out[:5] == 8).all() and out.isfinite().all()


class Apart(Graph):
    """Runs pieces and calls like the reference, and remembers where each result lay."""

    def record_pieces(self, function):
        self.calls = 0

        def between(call) -> None:
            self.calls += 1
            call()

        return lambda: function(between)


def test_layers_of_a_shape_share_a_buffer_that_stays() -> None:
    places: dict[int, set[int]] = {}

    def step(size: int, between) -> torch.Tensor:
        def attend(q: torch.Tensor, shape: Sequence[CacheView]) -> torch.Tensor:
            places.setdefault(q.shape[2], set()).add(q.data_ptr())
            return q.flatten(1).clone()

        attending: Attend = attend
        for width in (4, 6, 4):
            out = between(torch.ones(size, 2, width), attending)
        return out

    graph = Apart(GraphSpec(4, pieces=True), FACTS)
    pieces = Pieces(graph, 8)
    pieces.shape, pieces.views = SHAPE, views(1)
    replays = [pieces.record(lambda between, size=size: step(size, between)) for size in (8, 3)]
    for replay in (*replays, *replays):
        replay()
        assert graph.calls == 3
        graph.calls = 0
    assert [len(found) for found in places.values()] == [1, 1]
