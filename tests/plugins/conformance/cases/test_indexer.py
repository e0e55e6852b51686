"""The cases of indexer find whoever chooses other tokens, and leave near ties to rounding."""

import copy

import pytest
import torch

from hotshoe.slots.reference.indexer import Indexer


def test_the_reference_passes(defects) -> None:
    assert defects("indexer", Indexer) == []


@pytest.mark.parametrize(
    "fields", [{"top_k": 12}, {"interleaved": False}, {"interleaved": True}], ids=str
)
def test_fields_that_are_overlooked(finds, blind, fields) -> None:
    assert finds("indexer", blind("indexer", **fields))


class Longer(Indexer):
    def __call__(self, q, weights, cache, prepared):
        other = copy.copy(prepared)
        other.seq_lens = prepared.seq_lens + 1
        return super().__call__(q, weights, cache, other)


class SortedBlocks(Indexer):
    def __call__(self, q, weights, cache, prepared):
        other = copy.copy(prepared)
        other.block_table = prepared.block_table.sort(dim=1).values
        return super().__call__(q, weights, cache, other)


class PositiveWeights(Indexer):
    def __call__(self, q, weights, cache, prepared):
        return super().__call__(q, weights.abs(), cache, prepared)


class NoWeights(Indexer):
    def __call__(self, q, weights, cache, prepared):
        return super().__call__(q, torch.ones_like(weights), cache, prepared)


class LastHead(Indexer):
    def __call__(self, q, weights, cache, prepared):
        return super().__call__(q[:, -1:], weights[:, -1:], cache, prepared)


class Twice(Indexer):
    """Names the best token in the place of the last."""

    def __call__(self, q, weights, cache, prepared):
        found = super().__call__(q, weights, cache, prepared)
        found[:, -1] = found[:, 0]
        return found


class FirstTokens(Indexer):
    def __call__(self, q, weights, cache, prepared):
        found = super().__call__(q, weights, cache, prepared)
        first = torch.arange(found.shape[1], dtype=torch.int32)
        return torch.where(found < 0, found, first)


class MissingInFront(Indexer):
    def __call__(self, q, weights, cache, prepared):
        return super().__call__(q, weights, cache, prepared).flip(1)


class Wide(Indexer):
    def __call__(self, q, weights, cache, prepared):
        return super().__call__(q, weights, cache, prepared).long()


class Unturned(Indexer):
    def write(self, q, key, positions, cos_sin, cache, slot_mapping):
        return super().write(q, key, positions * 0, cos_sin, cache, slot_mapping)


class NextPosition(Indexer):
    """Turns q and key alike, so that products stay and the cache shows it."""

    def write(self, q, key, positions, cos_sin, cache, slot_mapping):
        return super().write(q, key, positions + 1, cos_sin, cache, slot_mapping)


class OneRowMore(Indexer):
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
        PositiveWeights,
        NoWeights,
        LastHead,
        Twice,
        FirstTokens,
        MissingInFront,
        Wide,
        Unturned,
        NextPosition,
        OneRowMore,
    ],
)
def test_other_choices_and_rows(finds, build) -> None:
    assert finds("indexer", build)


def test_the_order_of_a_choice_is_free(defects) -> None:
    class Ascending(Indexer):
        def __call__(self, q, weights, cache, prepared):
            found = super().__call__(q, weights, cache, prepared)
            ordered = torch.where(found < 0, 1 << 30, found).sort(dim=1).values
            return torch.where(ordered == 1 << 30, -1, ordered)

    assert defects("indexer", Ascending) == []
