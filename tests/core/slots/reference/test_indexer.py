"""The reference of the indexer against scores written out in float64, query by query."""

import random

import pytest
import torch

from hotshoe.slots import CacheView, IndexerSpec, StepShape
from hotshoe.slots.reference import indexer
from hotshoe.slots.reference.indexer import Indexer

SPEC = IndexerSpec(3, 10, 4, 6, "float32", "float32", 4)
#: Scores that differ by less are equal, as far as rounding goes.
NEAR = 1e-5


def turned(x, position, interleaved):
    """Rotate the first channels of one vector in float64, pair by pair."""
    out = x.double().clone()
    for i in range(2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + 2)
        angle = torch.tensor(position * 100.0 ** (-i / 2), dtype=torch.float64)
        out[a] = x[a].double() * angle.cos() - x[b].double() * angle.sin()
        out[b] = x[b].double() * angle.cos() + x[a].double() * angle.sin()
    return out


def table(length):
    angles = torch.arange(length)[:, None] * 100.0 ** (-torch.arange(2) / 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


class Cached:
    """One request whose keys go into shuffled blocks of a poisoned cache, step by step."""

    def __init__(self, spec):
        self.spec, self.op = spec, Indexer(spec, None)
        self.blocks, self.length = random.sample(range(12), 8), 0
        self.cache = torch.full((12, spec.block_size, spec.row.channels), torch.nan)
        self.keys = []

    def step(self, count):
        """Return what is chosen for further tokens, and every score of each."""
        spec, size = self.spec, self.spec.block_size
        at = range(self.length, self.length + count)
        q, key = torch.randn(count, 3, 10), torch.randn(count, 10)
        weights = torch.randn(count, 3)
        self.length += count
        shape = StepShape(1, ints(0, count), ints(self.length), count, self.length)
        slots = ints(*(self.blocks[p // size] * size + p % size for p in at))
        view = CacheView(ints(*self.blocks, 1 << 20)[None], slots)
        moved = self.op.write(q.clone(), key, ints(*at), table(64), self.cache, slots)
        chosen = self.op(moved, weights, self.cache, self.op.prepare(shape, view))
        self.keys += [turned(k, p, spec.interleaved) for k, p in zip(key, at, strict=True)]
        scores = []
        for own, factors, p in zip(q, weights.double(), at, strict=True):
            heads = [turned(head, p, spec.interleaved) for head in own]
            scores.append(
                [
                    float(sum(f * max(h @ k, 0.0) for f, h in zip(factors, heads, strict=True)))
                    for k in self.keys[: p + 1]
                ]
            )
        return chosen, scores


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("most", [1, indexer.MOST_SCORES])
def test_prompt_chunk_and_decode_against_float64(monkeypatch, interleaved, most):
    monkeypatch.setattr(indexer, "MOST_SCORES", most)
    cached = Cached(IndexerSpec(3, 10, 4, 6, "float32", "float32", 4, interleaved))
    for count in (4, 9, 1, 1, 8):
        chosen, scores = cached.step(count)
        assert chosen.shape == (count, 6) and chosen.dtype == torch.int32
        for row, own in zip(chosen.tolist(), scores, strict=True):
            number = min(6, len(own))
            taken = row[:number]
            assert len(set(taken)) == number and set(taken) <= set(range(len(own)))
            assert row[number:] == [-1] * (6 - number)
            rest = [own[p] for p in range(len(own)) if p not in taken]
            assert min(own[p] for p in taken) >= max(rest, default=-torch.inf) - NEAR


def test_a_request_chooses_among_its_own_tokens():
    one, other = Cached(SPEC), Cached(SPEC)
    other.cache, other.blocks = one.cache, [b for b in range(12) if b not in one.blocks[:4]]
    for cached in (one, other):
        cached.step(9)
    q, weights = torch.randn(5, 3, 10), torch.randn(5, 3)
    lengths, blocks = ints(9, 9), torch.stack([ints(*c.blocks[:3]) for c in (one, other)])

    def choose(rows, starts, only):
        count = len(starts) - 1
        shape = StepShape(count, ints(*starts), lengths[only], 4, 9)
        view = CacheView(blocks[only], ints())
        return one.op(q[rows], weights[rows], one.cache, one.op.prepare(shape, view))

    both = choose(slice(0, 5), (0, 4, 5), slice(0, 2))
    alone = [choose(slice(0, 4), (0, 4), slice(0, 1)), choose(slice(4, 5), (0, 1), slice(1, 2))]
    assert torch.equal(both.sort().values, torch.cat(alone).sort().values)


def test_what_is_not_finite_is_chosen_within_the_sequence():
    scored = torch.full((2, 4), torch.nan)
    found = indexer.choose(scored, torch.tensor([1, 3]), 3)
    assert (found[0] <= 1).all() and (found[1] >= 0).all()
