"""What an indexer of entries is asked, a request for each token, and what one of groups answers."""

import pytest
import torch
from tests.core.layers.conftest import FACTS

from hotshoe.layers import (
    BuildContext,
    CompressorNames,
    EntryIndexer,
    GroupIndexer,
    Rotary,
    Rotation,
)
from hotshoe.layers.indexer import Asked
from hotshoe.slots import SLOTS, CacheView, CompressSpec, IndexerSpec, Selector, StepShape


def indexer(group: int, block_size: int) -> tuple[BuildContext, EntryIndexer]:
    ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", block_size, 64)
    rotary = Rotary.build(Rotation((1.0, 0.1), interleaved=True), 64, "cpu", 1 << 30)
    made = CompressSpec(8, 4, group, True, 1e-6, "float32", "float32", block_size)
    asked = IndexerSpec(2, 8, 4, 3, "float32", "float32", made.per_block, interleaved=True)
    return ctx, EntryIndexer(ctx, asked, made, rotary, CompressorNames("bias", "norm"))


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("group", "block_size", "tables"),
    [
        # Blocks of two entries each.
        (4, 8, [[10, 11, 12], [10, 11, 12], [20, 21, 22]]),
        # Every second block holds an entry; a token that sees none gets a block of its request.
        (8, 4, [[11], [11], [20]]),
    ],
)
def test_every_token_asks_for_the_entries_that_it_sees(group, block_size, tables) -> None:
    _, layer = indexer(group, block_size)
    shape = StepShape(2, ints([0, 2, 3]), ints([9, 3]), 2, 9)
    view = CacheView(ints([[10, 11, 12], [20, 21, 22]]), ints([0, 0, 0]))
    step, none, positions = layer._prepare(shape, view)
    assert step.num_reqs == 3 and step.max_query_len == 1
    assert step.query_start_loc.tolist() == [0, 1, 2, 3]
    assert step.seq_lens.tolist() == [max(1, seen // group) for seen in (8, 9, 3)]
    assert none.tolist() == [False, False, True] and positions.tolist() == [7, 8, 2]
    assert step.block_table.tolist() == tables
    assert view.block_table.tolist() == [[10, 11, 12], [20, 21, 22]]


def test_weights_are_kept_where_they_lie() -> None:
    ctx, layer = indexer(4, 8)
    bias, norm = torch.randn(4, 16), torch.randn(8)
    for _ in range(2):
        ctx.weights.feed("bias", bias)
        ctx.weights.feed("norm.weight", norm)
        held = layer.compressor.state()
        assert torch.equal(held["bias"], bias) and torch.equal(held["norm"], norm)
        bias, norm = -bias, -norm
    before = held["bias"].data_ptr()
    ctx.weights.feed("bias", bias)
    assert layer.compressor.state()["bias"].data_ptr() == before


@pytest.mark.parametrize(
    ("found", "position", "chosen"),
    [
        ([2, 0, 1], 13, [8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 12, 13]),  # three groups and a rest
        ([1, 0, -1], 9, [4, 5, 6, 7, 0, 1, 2, 3, 8, 9]),  # fewer than may be chosen
        (
            [4, 0, 2],
            23,
            [16, 17, 18, 19, 0, 1, 2, 3, 8, 9, 10, 11],
        ),  # its own group may be left out
        ([-1, -1, -1], 2, [0, 1, 2]),
        ([-1, -1, -1], 0, [0]),
        ([0, -1, -1], 3, [0, 1, 2, 3]),
    ],
)
def test_groups_are_tokens_and_a_rest(monkeypatch, found, position, chosen) -> None:
    """Those of the chosen groups, then the unfinished one up to the query; nothing behind a gap."""
    ctx = BuildContext(Selector(SLOTS, [], FACTS), "float32", "float32", 8, 64)
    rotary = Rotary.build(Rotation((), interleaved=True), 64, "cpu", 1 << 30)
    made = CompressSpec(8, 0, 4, False, None, "float32", "float32", 8)
    asked = IndexerSpec(2, 8, 0, 3, "float32", "float32", made.per_block, interleaved=True)
    layer = GroupIndexer(ctx, asked, made, rotary, "bias")
    assert layer.top_k == 16 and "norm.weight" not in ctx.weights.expected
    entries = layer._entries
    monkeypatch.setattr(entries, "choose", lambda *_: ints([found]))
    monkeypatch.setattr(entries.compressor, "complete", lambda views: None)
    none = torch.tensor([position < 3])
    view = CacheView(ints([[0]]), ints([0]), (None, none, torch.tensor([position])))
    entries.compressor.entries.view = 0
    layer.choose(Asked(torch.zeros(1, 2, 8), torch.zeros(1, 2)), [view])
    assert layer.chosen.tolist() == [chosen + [-1] * (16 - len(chosen))]
    assert layer.chosen.dtype == torch.int32
