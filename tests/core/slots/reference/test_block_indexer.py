"""The reference of the choice of blocks against scores written out in float64, query by query."""

import random

import pytest
import torch

from hotshoe.slots import BlockIndexerSpec, CacheView, StepShape
from hotshoe.slots.reference import block_indexer, indexer
from hotshoe.slots.reference.accepts import supports
from hotshoe.slots.reference.block_indexer import BlockIndexer

SIZE, HEADS, DIM = 4, 2, 6
TABLE = torch.cat((torch.ones(64, 1), torch.zeros(64, 1)), 1)  # turns nothing
#: Scores that differ by less are equal, as far as rounding goes.
NEAR = 1e-5


def spec_of(group=8, top_k=3, local=1):
    return BlockIndexerSpec(HEADS, DIM, 2, group, top_k, local, "float32", "float32", SIZE)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def right(spec, q, keys, position):
    """Return the blocks that have to be chosen, the scores of all, and how many are chosen."""
    own = position // spec.group
    products = (keys[: position + 1].double() @ q.double()).split(spec.group)
    scores = [float(part.max()) for part in products]
    local = set(range(max(0, own - spec.local + 1), own + 1))
    return local, scores, min(spec.top_k, own + 1)


@pytest.mark.parametrize("most", [1, indexer.MOST_SCORES])
@pytest.mark.parametrize("sizes", [{}, {"local": 2}, {"group": 4, "top_k": 5}, {"top_k": 1}])
def test_prompt_chunk_and_decode_against_float64(monkeypatch, sizes, most):
    monkeypatch.setattr(indexer, "MOST_SCORES", most)
    spec = spec_of(**sizes)
    op, blocks = BlockIndexer(spec, None), random.sample(range(16), 14)
    cache = torch.full((16, SIZE, DIM), torch.nan)
    keys, length = torch.empty(0, DIM), 0
    for count in (5, 17, 1, 1, 20):
        at = torch.arange(length, length := length + count)
        q, fresh = torch.randn(count, HEADS, DIM), torch.randn(count, DIM)
        shape = StepShape(1, ints(0, count), ints(length), count, length)
        slots = ints(*blocks)[at // SIZE] * SIZE + at % SIZE
        view = CacheView(ints(*blocks, 1 << 20)[None], slots)
        turned = op.write(q.clone(), fresh, at.int(), TABLE, cache, slots)
        assert torch.equal(turned, q)
        keys = torch.cat((keys, fresh))
        chosen = op(turned, cache, op.prepare(shape, view))
        assert chosen.shape == (count, HEADS, spec.top_k) and chosen.dtype == torch.int32
        for row, position, heads in zip(chosen.tolist(), at.tolist(), q, strict=True):
            for found, head in zip(row, heads, strict=True):
                local, scores, number = right(spec, head, keys, position)
                taken = set(found[:number])
                assert len(taken) == number and taken <= set(range(len(scores)))
                assert found[number:] == [-1] * (spec.top_k - number) and local <= taken
                lowest = min((scores[b] for b in taken - local), default=torch.inf)
                rest = [scores[b] for b in range(len(scores)) if b not in taken]
                assert lowest >= max(rest, default=-torch.inf) - NEAR


def test_what_is_not_finite_is_chosen_within_the_sequence():
    at, scored = torch.tensor([3, 12]), torch.full((2, HEADS, 3), torch.nan)
    found = block_indexer.choose(spec_of(top_k=2), scored, at)
    assert found.sort(-1).values.tolist() == [[[-1, 0]] * HEADS, [[0, 1]] * HEADS]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"group": 6}, "--block-size that divides"),
        ({"group": 0}, "blocks of 0 tokens"),
        ({"local": 0}, "1 to 3 blocks whatever they score, not 0"),
        ({"local": 4}, "not 4"),
        ({"top_k": 0}, "at least one"),
    ],
)
def test_sizes_that_nobody_could_serve_are_refused(sizes, message):
    assert message in supports(spec_of(**sizes), None).reason
    assert supports(spec_of(), None).score == 0
