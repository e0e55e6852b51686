"""The cases of sparse_mla_attention find whoever attends to other tokens than the chosen ones."""

import copy

import pytest
import torch

from hotshoe.slots.reference.sparse_mla_attention import SparseMlaAttention


def test_the_reference_passes(defects) -> None:
    assert defects("sparse_mla_attention", SparseMlaAttention) == []


class Everything(SparseMlaAttention):
    """Attends to all tokens that a query sees, as far as there is room."""

    def __call__(self, q, cache, prepared, chosen, **beside):
        seen = (chosen >= 0).sum(1, keepdim=True)
        first = torch.arange(chosen.shape[1], dtype=torch.int32)
        return super().__call__(q, cache, prepared, torch.where(first < seen, first, -1), **beside)


class MissingAsFirst(SparseMlaAttention):
    def __call__(self, q, cache, prepared, chosen, **beside):
        return super().__call__(q, cache, prepared, chosen.clamp(min=0), **beside)


class OneLess(SparseMlaAttention):
    def __call__(self, q, cache, prepared, chosen, **beside):
        if chosen.shape[1] > 1:
            chosen = torch.cat((chosen[:, :-1], chosen[:, :1] * 0 - 1), dim=1)
        return super().__call__(q, cache, prepared, chosen, **beside)


class OfTheFirstRequest(SparseMlaAttention):
    def __call__(self, q, cache, prepared, chosen, **beside):
        other = copy.copy(prepared)
        other.block_table = prepared.block_table[:1].expand_as(prepared.block_table)
        return super().__call__(q, cache, other, chosen, **beside)


class LowPrecision(SparseMlaAttention):
    def __call__(self, q, cache, prepared, chosen, **beside):
        return super().__call__(q.bfloat16(), cache, prepared, chosen, **beside).to(q.dtype)


class NoSinks(SparseMlaAttention):
    def __call__(self, q, cache, prepared, chosen, **beside):
        beside.pop("sinks", None)
        return super().__call__(q, cache, prepared, chosen, **beside)


class PlainKey(SparseMlaAttention):
    def __init__(self, spec, facts):
        super().__init__(spec, facts)
        self.write = self._write

    def _write(self, q, latent, key, positions, cos_sin, cache, slot_mapping):
        q = self._dense.write(q, latent, key, positions, cos_sin, cache, slot_mapping)
        cache.flatten(0, 1)[slot_mapping.long(), latent.shape[1] :] = key.to(cache.dtype)
        return q


@pytest.mark.parametrize(
    "build",
    [Everything, MissingAsFirst, OneLess, OfTheFirstRequest, LowPrecision, NoSinks, PlainKey],
)
def test_other_tokens_and_rows(finds, build) -> None:
    assert finds("sparse_mla_attention", build)


def test_a_claim_of_batch_invariance(defects) -> None:
    class ByBatch(SparseMlaAttention):
        def __call__(self, q, cache, prepared, chosen, **beside):
            out = super().__call__(q, cache, prepared, chosen, **beside)
            return out if prepared.num_reqs == 1 else torch.nextafter(out, out + 1)

    found = defects("sparse_mla_attention", ByBatch, batch_invariant=True)
    assert any("claims batch inv" in defect for defect in found)
