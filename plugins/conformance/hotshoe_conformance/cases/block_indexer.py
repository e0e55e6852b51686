"""Cases of slot `block_indexer`: a step's keys are written, then each head chooses blocks.

Which of nearly equal scores are chosen is left to rounding. So the scores of what was chosen are
compared, computed in float64 and sorted, with the largest that there are.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hotshoe.slots import BlockIndexerSpec, KVLayout
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import DTYPES, Setup, Suite, in_dtype, normal
from hotshoe_conformance.cases.indexer import ChoiceProblem
from hotshoe_conformance.cases.rows import draw_blocks, earlier, grid
from hotshoe_conformance.tolerance import Close, Exact, Expected

SLOT = "block_indexer"
BASE = BlockIndexerSpec(2, 32, 16, 16, 3, 1, "float32", "float32", 8)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_heads": 1},
    {"num_heads": 5},
    {"head_dim": 16},
    {"head_dim": 128, "rope_dim": 64},
    {"rope_dim": 32},
    {"group": 8},
    {"group": 64},
    {"top_k": 1},
    {"top_k": 16},
    {"top_k": 4, "local": 2},
    {"top_k": 3, "local": 3},
    {"block_size": 1, "group": 7},
    {"block_size": 16},
    {"interleaved": True},
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return grid(BASE, VARIATIONS)


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    block_size, top_k = rng.choice((8, 16, 32)), rng.choice((1, 2, 5, 16))
    spec = BlockIndexerSpec(
        rng.randrange(1, 9),
        rng.choice((16, 32, 64, 128)),
        rng.choice((8, 16)),
        block_size * rng.choice((1, 2, 4)),
        top_k,
        rng.randrange(1, min(top_k, 3) + 1),
        "float32",
        "float32",
        block_size,
        rng.random() < 0.5,
    )
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 300))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class BlockIndexerProblem(ChoiceProblem):
    """See `ChoiceProblem`."""

    spec: BlockIndexerSpec

    def _judged(self, chosen: Tensor) -> Mapping[str, Tensor]:
        """Say how good a choice is; one of another form stands for itself."""
        shape = (*self.q.shape[:2], self.spec.top_k)
        if chosen.shape != shape or chosen.dtype != torch.int32:
            return {"scores": chosen, "counts": chosen}
        own = self.positions()[:, None, None] // self.spec.group
        valid = (chosen >= 0) & (chosen <= own)
        scores, _ = self._scores()
        most = scores.shape[-1]
        at = torch.where(valid, chosen.long(), most)
        taken = torch.zeros((*shape[:2], most + 1), dtype=torch.bool)
        taken = taken.scatter_(-1, at, True)[..., :most]
        found = pad(scores, (0, 1), value=-torch.inf).gather(-1, at)
        ends = torch.where(chosen == -1, 0, torch.arange(1, shape[-1] + 1)).amax(-1)
        counts = torch.stack((taken.sum(-1), valid.sum(-1), ends), dim=-1)
        return {"scores": _descending(found), "counts": counts}

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Return the scores [tokens, heads, most blocks] float64, infinite for what is chosen or
        left in any case, and by how much rounding may move them [tokens, heads]."""
        spec, q, new = self.spec, self._turned(), self.as_kept(self._new())
        counts = [count for count, _ in self.batch.requests]
        most = -(-max(length for _, length in self.batch.requests) // spec.group)
        out = torch.full((*q.shape[:2], most), -torch.inf, dtype=torch.float64)
        size = torch.zeros(q.shape[:2], dtype=torch.float64)
        parts = (t.split(counts) for t in (out, size, q, new))
        for rows, sizes, own, fresh, past in zip(*parts, self.past, strict=True):
            keys = torch.cat((self.as_kept(past), fresh)).double()
            scores = torch.einsum("qhd,ld->hql", own, keys)
            seen = torch.ones(scores.shape[1:], dtype=torch.bool).tril(len(keys) - len(own))
            scores = scores.masked_fill(~seen, -torch.inf)
            scores = pad(scores, (0, -len(keys) % spec.group), value=-torch.inf)
            blocks = scores.unflatten(-1, (-1, spec.group)).amax(-1)
            rows[..., : blocks.shape[-1]] = blocks.transpose(0, 1)
            sizes += own.norm(dim=-1) * keys.norm(dim=-1).max()
        back = self.positions()[:, None] // spec.group - torch.arange(most)
        local = (back >= 0) & (back < spec.local)
        return out.masked_fill_(local[:, None], torch.inf), 2 * self._rounding() * size

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        scores, slack = self._scores()
        best = pad(scores, (0, spec.top_k), value=-torch.inf).topk(spec.top_k).values
        number = (self.positions().long() // spec.group + 1).clamp(max=spec.top_k)
        return {
            "scores": Close(_descending(best), "float64", slack=slack[..., None]),
            "counts": Exact(number[:, None, None].expand(-1, spec.num_heads, 3)),
            **self.kept(self._new()),
        }


def _descending(scores: Tensor) -> Tensor:
    """Sort rows; what is chosen or missing in any case counts as 0, as counts are compared."""
    ordered = scores.sort(dim=-1, descending=True).values
    return ordered.masked_fill(ordered.isinf(), 0)


def _problem(setup: Setup, source: torch.Generator) -> BlockIndexerProblem:
    spec, batch = setup.spec, setup.shape
    blocks, num_blocks = draw_blocks(spec.block_size, batch, source)
    tokens = sum(count for count, _ in batch.requests)
    return BlockIndexerProblem(
        spec,
        batch,
        normal((tokens, spec.num_heads, spec.head_dim), spec.dtype, source),
        normal((tokens, spec.head_dim), spec.dtype, source),
        earlier(spec, batch, source),
        blocks,
        num_blocks,
    )


#: MiniMax M3's heads.
PUBLISHED = BlockIndexerSpec(4, 128, 64, 128, 16, 1, "float32", "float32", 32)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    batches = (Batch(((1, 8192),) * 4), Batch(((256, 8192),)))
    return [Setup(in_dtype(PUBLISHED, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
