"""What an indexer of entries is asked: a request for each token, over blocks that hold entries."""

import pytest
import torch
from tests.core.layers.conftest import FACTS

from hotshoe.layers import BuildContext, CompressorNames, EntryIndexer, Rotary, Rotation
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
    step, none = layer._prepare(shape, view)
    assert step.num_reqs == 3 and step.max_query_len == 1
    assert step.query_start_loc.tolist() == [0, 1, 2, 3]
    assert step.seq_lens.tolist() == [max(1, seen // group) for seen in (8, 9, 3)]
    assert none.tolist() == [False, False, True]
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
