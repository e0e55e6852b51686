"""The cases of block_indexer find whoever chooses other blocks, and leave near ties to rounding."""

import copy

import pytest
import torch

from hotshoe.slots.reference.block_indexer import BlockIndexer

SLOT = "block_indexer"


def test_the_reference_passes(defects) -> None:
    assert defects(SLOT, BlockIndexer) == []


@pytest.mark.parametrize(
    "fields", [{"top_k": 3}, {"interleaved": False}, {"local": 1}, {"group": 16}], ids=str
)
def test_fields_that_are_overlooked(finds, blind, fields) -> None:
    assert finds(SLOT, blind(SLOT, **fields))


class Longer(BlockIndexer):
    def __call__(self, q, cache, prepared):
        other = copy.copy(prepared)
        other.seq_lens = prepared.seq_lens + 1
        return super().__call__(q, cache, other)


class SortedBlocks(BlockIndexer):
    def __call__(self, q, cache, prepared):
        other = copy.copy(prepared)
        other.block_table = prepared.block_table.sort(dim=1).values
        return super().__call__(q, cache, other)


class AllHeadsAlike(BlockIndexer):
    def __call__(self, q, cache, prepared):
        return super().__call__(q[:, :1].expand_as(q), cache, prepared)


class Smallest(BlockIndexer):
    def __call__(self, q, cache, prepared):
        return super().__call__(-q, cache, prepared)


class Twice(BlockIndexer):
    """Names the first block in the place of the last."""

    def __call__(self, q, cache, prepared):
        found = super().__call__(q, cache, prepared)
        found[..., -1] = found[..., 0]
        return found


class LastBlocks(BlockIndexer):
    """A window, whatever blocks score."""

    def __call__(self, q, cache, prepared):
        found = super().__call__(q, cache, prepared)
        own = found.amax(-1, keepdim=True)
        back = own - torch.arange(found.shape[-1], dtype=torch.int32)
        return back.clamp(min=-1)


class MissingInFront(BlockIndexer):
    def __call__(self, q, cache, prepared):
        return super().__call__(q, cache, prepared).flip(-1)


class Wide(BlockIndexer):
    def __call__(self, q, cache, prepared):
        return super().__call__(q, cache, prepared).long()


class Unturned(BlockIndexer):
    def write(self, q, key, positions, cos_sin, cache, slot_mapping):
        return super().write(q, key, positions * 0, cos_sin, cache, slot_mapping)


class OneRowMore(BlockIndexer):
    def write(self, q, key, positions, cos_sin, cache, slot_mapping):
        rows = cache.flatten(0, 1)
        free = rows.isnan().all(-1)
        q = super().write(q, key, positions, cos_sin, cache, slot_mapping)
        free[slot_mapping.long()] = False
        rows[free.nonzero()[0, 0]] = 0
        return q


@pytest.mark.parametrize(
    "build",
    [
        Longer,
        SortedBlocks,
        AllHeadsAlike,
        Smallest,
        Twice,
        LastBlocks,
        MissingInFront,
        Wide,
        Unturned,
        OneRowMore,
    ],
)
def test_other_choices_and_rows(finds, build) -> None:
    assert finds(SLOT, build)


def test_the_order_of_a_choice_is_free(defects) -> None:
    class Ascending(BlockIndexer):
        def __call__(self, q, cache, prepared):
            found = super().__call__(q, cache, prepared)
            ordered = torch.where(found < 0, 1 << 30, found).sort(dim=-1).values
            return torch.where(ordered == 1 << 30, -1, ordered)

    assert defects(SLOT, Ascending) == []
