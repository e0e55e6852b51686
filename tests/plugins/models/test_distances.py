"""Tables by distance: T5's buckets against transformers', and the heads of a rank."""

import secrets
from types import SimpleNamespace

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from hotshoe.layers.split import Section, split_sections
from hotshoe_models.distances import BiasTable, Buckets


@pytest.mark.parametrize(("count", "farthest"), [(32, 128), (8, 20), (64, 1000)])
def test_buckets_are_those_of_transformers(count: int, farthest: int) -> None:
    distances = torch.arange(-3 * farthest, 3 * farthest + 1)
    wanted = T5Attention._relative_position_bucket(
        distances, num_buckets=count, max_distance=farthest
    )
    rule = Buckets("x", count, farthest)
    assert torch.equal(rule.rows(distances), wanted)
    for side in (distances, -distances):  # what a table's ends stand for
        ends = wanted[side >= rule.span].tolist()
        assert len(set(ends)) == 1 != len({*ends, *wanted[side == rule.span - 1].tolist()})


def context(rank: int, ranks: int) -> SimpleNamespace:
    def split(what: str, *sections: Section):
        return split_sections(what, sections, rank, ranks)

    return SimpleNamespace(device="cpu", split=split, weight_bytes=[])


def test_a_rank_holds_its_heads() -> None:
    torch.manual_seed(secrets.randbits(32))
    rows = torch.randn(11, 6)
    parts = []
    for rank in range(2):
        made = BiasTable(context(rank, 2), 5, 6)
        made.fill(lambda distances: rows[distances + 5])
        first = made.values
        made.fill(lambda distances: 2 * rows[distances + 5])
        assert made.values is first  # renewed where it lies
        parts.append(made.values)
    assert torch.equal(torch.cat(parts), 2 * rows.T)
