"""The cases of attention find whoever overlooks a field, a boundary or a stride."""

import copy
from dataclasses import replace

import pytest
import torch

from hotshoe.slots import PLAIN_LAYOUT
from hotshoe.slots.reference.attention import Attention
from hotshoe_conformance.cases.attention import BASE, MIXED, SUITE
from hotshoe_conformance.cases.base import Case, Setup
from hotshoe_conformance.place import Place


def test_the_reference_passes(defects) -> None:
    assert defects("attention", Attention) == []


@pytest.mark.parametrize(
    "fields",
    [{"window": None}, {"softcap": None}, {"scale": 0.125}, {"window": 7}, {"softcap": 5.0}],
    ids=str,
)
def test_fields_that_are_overlooked(defects, blind, fields) -> None:
    found = defects("attention", blind("attention", **fields))
    assert found
    assert all("out: " in defect for defect in found)


def one_more(op, spec, q, cache, metadata, sinks):
    longer = copy.copy(metadata)
    longer.seq_lens = metadata.seq_lens + 1
    return op(q, cache, longer, sinks)


def one_less(op, spec, q, cache, metadata, sinks):
    shorter = copy.copy(metadata)
    shorter.seq_lens = (metadata.seq_lens - 1).clamp(min=1)
    return op(q, cache, shorter, sinks)


def no_sinks(op, spec, q, cache, metadata, sinks):
    return op(q, cache, metadata, None)


def sorted_blocks(op, spec, q, cache, metadata, sinks):
    other = copy.copy(metadata)
    other.block_table = metadata.block_table.sort(dim=1).values
    return op(q, cache, other, sinks)


def first_table_row(op, spec, q, cache, metadata, sinks):
    other = copy.copy(metadata)
    other.block_table = metadata.block_table[:1].expand_as(metadata.block_table)
    return op(q, cache, other, sinks)


def packed_queries(op, spec, q, cache, metadata, sinks):
    tokens = q.as_strided(q.shape, (q.shape[1] * q.shape[2], q.shape[2], 1))
    return op(tokens, cache, metadata, sinks)


def packed_table(op, spec, q, cache, metadata, sinks):
    other = copy.copy(metadata)
    rows, columns = metadata.block_table.shape
    other.block_table = metadata.block_table.as_strided((rows, columns), (columns, 1))
    return op(q, cache, other, sinks)


def first_kv_head(op, spec, q, cache, metadata, sinks):
    shape = (*cache.shape[:2], spec.block_size, spec.num_kv_heads, spec.head_dim)
    heads = cache.view(shape)[:, :, :, :1].expand(shape)
    return op(q, heads.reshape(cache.shape), metadata, sinks)


def low_precision(op, spec, q, cache, metadata, sinks):
    return op(q.bfloat16(), cache, metadata, sinks).to(q.dtype)


def last_of_span(op, spec, q, cache, metadata, sinks):
    """All tokens of one sequence see as much as the last of them."""
    if metadata.spans is not None:
        lengths = metadata.seq_lens[metadata.spans[:, 1].long() - 1]
        metadata = replace(metadata, seq_lens=lengths)
    return op(q, cache, metadata, sinks)


@pytest.mark.parametrize(
    "change",
    [
        one_more,
        one_less,
        no_sinks,
        sorted_blocks,
        first_table_row,
        packed_queries,
        packed_table,
        first_kv_head,
        low_precision,
        last_of_span,
    ],
)
def test_boundaries_and_layouts(finds, wrapped, change) -> None:
    assert finds("attention", wrapped("attention", change))


class Apart(Attention):
    """The reference over blocks that do not follow each other."""

    layout = replace(PLAIN_LAYOUT, gap=8)


class Followed(Apart):
    """Declares a gap, and reads as if there were none."""

    def __call__(self, q, cache, metadata, sinks):
        numel = cache.shape[2]
        packed = cache.as_strided(cache.shape, (cache.stride(0), numel, 1))
        return super().__call__(q, packed, metadata, sinks)


def test_gaps_between_blocks(defects) -> None:
    assert defects("attention", Apart) == []
    assert defects("attention", Followed)


def test_a_claim_of_batch_invariance(defects, wrapped) -> None:
    def by_batch(op, spec, q, cache, metadata, sinks):
        out = op(q, cache, metadata, sinks)
        return out if metadata.num_reqs == 1 else torch.nextafter(out, out + 1)

    assert defects("attention", Attention, batch_invariant=True) == []
    build = wrapped("attention", by_batch)
    assert any("claims batch inv" in d for d in defects("attention", build, batch_invariant=True))


def test_a_large_soft_cap_may_come_from_an_exponential_but_not_be_left_out(monkeypatch) -> None:
    spec = replace(BASE, softcap=50.0, window=3)
    rounded, left_out = Attention(spec, None), Attention(replace(spec, softcap=None), None)
    for seed in range(10):
        problem = Case("attention", 0, seed, Setup(spec, MIXED)).problem(SUITE)
        expected = problem.expected()["out"]
        with monkeypatch.context() as patch:
            patch.setattr(torch, "tanh", lambda x: 1 - 2 / (1 + torch.exp(2 * x)))
            found = problem.call(rounded, Place("cpu"))
        assert expected.check(found["out"]).error < 1
        assert expected.check(problem.call(left_out, Place("cpu"))["out"]).error > 10
