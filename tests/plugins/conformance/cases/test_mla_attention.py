"""The cases of mla_attention find whoever overlooks a field, a boundary, a stride or a row."""

import copy

import pytest
import torch

from hotshoe.slots.reference.mla_attention import MlaAttention


def test_the_reference_passes(defects) -> None:
    assert defects("mla_attention", MlaAttention) == []


@pytest.mark.parametrize(
    "fields", [{"scale": 48**-0.5}, {"interleaved": False}, {"interleaved": True}], ids=str
)
def test_fields_that_are_overlooked(finds, blind, fields) -> None:
    assert finds("mla_attention", blind("mla_attention", **fields))


class Longer(MlaAttention):
    def __call__(self, q, cache, prepared):
        other = copy.copy(prepared)
        other.seq_lens = prepared.seq_lens + 1
        return super().__call__(q, cache, other)


class SortedBlocks(MlaAttention):
    def __call__(self, q, cache, prepared):
        other = copy.copy(prepared)
        other.block_table = prepared.block_table.sort(dim=1).values
        return super().__call__(q, cache, other)


class PackedTable(MlaAttention):
    def __call__(self, q, cache, prepared):
        other = copy.copy(prepared)
        rows, columns = prepared.block_table.shape
        other.block_table = prepared.block_table.as_strided((rows, columns), (columns, 1))
        return super().__call__(q, cache, other)


class LowPrecision(MlaAttention):
    def __call__(self, q, cache, prepared):
        return super().__call__(q.bfloat16(), cache, prepared).to(q.dtype)


class Unwritten(MlaAttention):
    def write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        return super().write(q, latent, key, positions, cos_sin, cache.clone(), slot_mapping)


class OneRowMore(MlaAttention):
    def write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        rows = cache.flatten(0, 1)
        free = rows.isnan().all(-1)
        q = super().write(q, latent, key, positions, cos_sin, cache, slot_mapping)
        free[slot_mapping.long()] = False
        rows[free.nonzero()[0, 0]] = 0
        return q


class NextPosition(MlaAttention):
    """Turns q and key alike, so that products stay and the cache shows it."""

    def write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        return super().write(q, latent, key, positions + 1, cos_sin, cache, slot_mapping)


class PlainKey(MlaAttention):
    def write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        q = super().write(q, latent, key, positions, cos_sin, cache, slot_mapping)
        cache.flatten(0, 1)[slot_mapping.long(), latent.shape[1] :] = key.to(cache.dtype)
        return q


class PackedKey(MlaAttention):
    def write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        key = key.as_strided(key.shape, (key.shape[1], 1))
        return super().write(q, latent, key, positions, cos_sin, cache, slot_mapping)


class Swapped(MlaAttention):
    """Takes the rows of values for those of keys."""

    def load(self, up):
        super().load(up.flip(1))


class Stale(MlaAttention):
    """Keeps the tensor that it was lent."""

    def load(self, up):
        self.up = up


@pytest.mark.parametrize(
    "build",
    [
        Longer,
        SortedBlocks,
        PackedTable,
        LowPrecision,
        Unwritten,
        OneRowMore,
        NextPosition,
        PlainKey,
        PackedKey,
        Swapped,
        Stale,
    ],
)
def test_boundaries_rows_and_matrices(finds, build) -> None:
    assert finds("mla_attention", build)


def test_a_claim_of_batch_invariance(defects) -> None:
    class ByBatch(MlaAttention):
        def __call__(self, q, cache, prepared):
            out = super().__call__(q, cache, prepared)
            return out if prepared.num_reqs == 1 else torch.nextafter(out, out + 1)

    found = defects("mla_attention", ByBatch, batch_invariant=True)
    assert any("claims batch inv" in defect for defect in found)
