"""The reference of sparse latent attention against the dense one over the chosen rows alone."""

import pytest
import torch

from hotshoe.slots import AttentionMetadata, MlaAttentionSpec, SparseMlaSpec
from hotshoe.slots.reference import sparse_mla_attention
from hotshoe.slots.reference.mla_attention import absorbed
from hotshoe.slots.reference.sparse_mla_attention import SparseMlaAttention

LATENT = MlaAttentionSpec(3, 24, 10, 8, 6, "float32", "float32", 4, 0.31)
FACTS = type("F", (), {"device": "cpu"})


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def made(top_k=5):
    op = SparseMlaAttention(SparseMlaSpec(LATENT, top_k), FACTS)
    up = torch.randn(3, 16, 24) * 0.2
    op.load(up)
    return op, up


@pytest.mark.parametrize("most", [1, 400, sparse_mla_attention.MOST_NUMBERS])
def test_each_query_sees_the_rows_it_chose(monkeypatch, most):
    monkeypatch.setattr(sparse_mla_attention, "MOST_NUMBERS", most)
    op, up = made()
    cache, q = torch.randn(8, 4, 32), torch.randn(4, 3, 18)
    tables = torch.tensor([[5, 2, 7, 99], [1, 3, 0, 99]], dtype=torch.int32)
    prepared = AttentionMetadata(2, ints(0, 3, 4), ints(10, 9), tables, ints(), 3, 10)
    chosen = torch.tensor(
        [[7, 0, 3, -1, -1], [8, 1, 2, 4, 5], [9, -1, -1, -1, -1], [6, 8, 0, 1, -1]]
    ).int()
    out = op(q, cache, prepared, chosen).view(4, 3, 6)
    for i, request in enumerate((0, 0, 0, 1)):
        own = [p for p in chosen[i].tolist() if p >= 0]
        rows = torch.stack([cache[int(tables[request, p // 4]), p % 4] for p in own])
        want = absorbed(LATENT, q[i : i + 1], rows, up)[0]
        torch.testing.assert_close(out[i], want, rtol=1e-5, atol=1e-6)


def test_rows_that_nobody_chose_do_not_count_even_where_they_are_no_numbers():
    op, _ = made()
    cache, q = torch.full((2, 4, 32), torch.nan), torch.randn(1, 3, 18)
    cache[1, 2] = torch.randn(32)
    prepared = AttentionMetadata(1, ints(0, 1), ints(3), ints(1)[None], ints(), 1, 3)
    assert op(q, cache, prepared, ints(2, -1, -1, -1, -1)[None]).isfinite().all()


def test_a_query_that_chose_nothing_is_no_number():
    op, _ = made()
    prepared = AttentionMetadata(1, ints(0, 1), ints(1), ints(0)[None], ints(), 1, 1)
    out = op(torch.randn(1, 3, 18), torch.randn(1, 4, 32), prepared, ints(-1)[None])
    assert out.isnan().all()


def test_the_matrix_is_held_as_without_a_choice():
    op, up = made()
    assert torch.equal(op.state()["weight"], up.flatten(0, 1)) and op.nbytes() == up.nbytes
