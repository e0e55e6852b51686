"""Disentangled attention in float64, request by request, whatever the groups are."""

import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from hotshoe.slots import StepShape
from hotshoe_models import disentangled
from hotshoe_models.disentangled import DisentangledAttention, Distances, groups

HEADS, DIM = 2, 8
LENGTHS = (5, 1, 9, 2, 14)


def shape_of(lengths: tuple[int, ...]) -> StepShape:
    counts = torch.tensor(lengths, dtype=torch.int32)
    starts = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()))
    longest = max(lengths)
    return StepShape(len(lengths), starts, counts, longest, longest, host_lens=(lengths, lengths))


@pytest.mark.parametrize("pairs", [2**22, 100, 1])
@pytest.mark.parametrize(("c2p", "p2c"), [(True, True), (True, False), (False, True)])
def test_every_request_attends_to_itself_alone(monkeypatch, pairs, c2p, p2c) -> None:
    monkeypatch.setattr(disentangled, "PAIRS", pairs)
    distances = Distances(4, 12, c2p, p2c)
    op = DisentangledAttention(HEADS, DIM, distances)
    qkv = torch.randn(sum(LENGTHS), 3 * HEADS * DIM, dtype=torch.float64)
    relative = torch.randn(8, 3 * HEADS * DIM, dtype=torch.float64)
    out = op(qkv, relative, op.prepare(shape_of(LENGTHS)))
    row_q, row_k, _ = relative.view(8, 3, HEADS, DIM).unbind(1)
    for rows, found in zip(qkv.split(LENGTHS), out.split(LENGTHS), strict=True):
        q, k, v = rows.view(len(rows), 3, HEADS, DIM).unbind(1)
        at = torch.arange(len(rows))
        reach = distances.reach
        own = distances.table()[(at[:, None] - at).clamp(-reach, reach) + reach]
        logits = torch.einsum("ihd,jhd->hij", q, k)
        logits += c2p * torch.einsum("ihd,ijhd->hij", q, row_k[own])
        logits += p2c * torch.einsum("jhd,ijhd->hij", k, row_q[own])
        weights = (logits / (DIM * (1 + c2p + p2c)) ** 0.5).softmax(-1)
        wanted = torch.einsum("hij,jhd->ihd", weights, v).flatten(1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)  # softmax is in float32


@pytest.mark.parametrize(("span", "farthest"), [(256, 512), (12, 64), (3, 20)])
def test_buckets_are_those_of_transformers(span: int, farthest: int) -> None:
    distances = torch.arange(-2 * farthest, 2 * farthest + 1)
    wanted = make_log_bucket_position(distances, span, farthest).long() + span
    rows = Distances(span, farthest)
    found = rows.table()[distances.clamp(-rows.reach, rows.reach) + rows.reach]
    assert torch.equal(found, wanted.clamp(0, 2 * span - 1))


def test_groups_have_a_most_of_pairs(monkeypatch) -> None:
    monkeypatch.setattr(disentangled, "PAIRS", 100)
    assert list(groups([5, 5, 5, 5, 5])) == [(0, 4), (4, 5)]
    assert list(groups([1, 20, 1])) == [(0, 1), (1, 2), (2, 3)]
    assert list(groups([])) == []
