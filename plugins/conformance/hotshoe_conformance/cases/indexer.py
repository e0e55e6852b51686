"""Cases of slot `indexer`: a step's keys are written, then each query chooses tokens.

Which of nearly equal scores are chosen is left to rounding. So the scores of what was chosen are
compared, computed in float64 and sorted, with the largest that there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from hotshoe.slots import BlockIndexerSpec, IndexerSpec, KVLayout
from hotshoe.slots.reference.rotary import rotate
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal
from hotshoe_conformance.cases.kv import STEPS
from hotshoe_conformance.cases.mla_attention import rotations
from hotshoe_conformance.cases.rows import PagedRows, draw_blocks, earlier, grid
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Expected

SLOT = "indexer"
BASE = IndexerSpec(8, 32, 16, 12, "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_heads": 1},
    {"num_heads": 7},
    {"num_heads": 64},
    {"head_dim": 16},
    {"head_dim": 128, "rope_dim": 64},
    {"rope_dim": 32},
    {"rope_dim": 0},
    {"top_k": 1},
    {"top_k": 16},
    {"top_k": 37},
    {"top_k": 2048},
    {"block_size": 1},
    {"block_size": 8},
    {"block_size": 64},
    {"interleaved": True},
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return grid(BASE, VARIATIONS)


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    head_dim = rng.choice((16, 32, 64, 128))
    spec = IndexerSpec(
        rng.randrange(1, 17),
        head_dim,
        rng.choice((8, 16)),
        rng.choice((1, 5, 16, 32, 100, 512)),
        "float32",
        "float32",
        rng.choice((8, 16, 32)),
        rng.random() < 0.5,
    )
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class ChoiceProblem(PagedRows):
    """A step's q and keys of heads that choose, and what was cached before; see `PagedRows`."""

    spec: IndexerSpec | BlockIndexerSpec
    batch: Batch
    q: Tensor
    key: Tensor
    past: list[Tensor]
    blocks: list[Tensor]
    num_blocks: int

    #: Tensors with a row for each token.
    BY_TOKEN: ClassVar[tuple[str, ...]] = ("q", "key")

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        run, cache = self._bind(op, place)
        chosen = run()
        return {**self._judged(chosen.cpu()), **self.found(cache)}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], Tensor]:
        cache, (shape, view) = self.cache(place), self.step(place)
        q, key = place(self.q, written=True), place(self.key)
        more = [place(getattr(self, name)) for name in self.BY_TOKEN[2:]]
        positions, table = place(self.positions()), place(rotations(self.spec.rope_dim))
        prepared = op.prepare(shape, view)

        def run() -> Tensor:
            turned = op.write(q, key, positions, table, cache, view.slot_mapping)
            out: Tensor = op(turned, *more, cache, prepared)
            return out

        return run, cache

    def _judged(self, chosen: Tensor) -> Mapping[str, Tensor]:
        """Say how good a choice is."""
        raise NotImplementedError

    def _turned(self) -> Tensor:
        """Return the step's q, rotated [tokens, num_heads, head_dim] float64."""
        table = rotations(self.spec.rope_dim)[self.positions().long()]
        return rotate(self.q.float(), table, self.spec.interleaved).double()

    def _new(self) -> Tensor:
        """Return the step's keys, rotated [tokens, head_dim] float32."""
        table = rotations(self.spec.rope_dim)[self.positions().long()]
        return rotate(self.key.float()[:, None], table, self.spec.interleaved)[:, 0]

    def _rounding(self) -> float:
        """Return by what part of its size rounding may move a product."""
        steps = {kind: limit.rounding for kind, limit in TOLERANCES.items()} | STEPS
        return max(steps[kind] for kind in (self.spec.dtype, self.spec.kv_dtype))

    def alone(self) -> tuple[Self, slice]:
        at = len(self.batch.requests) // 2
        begin = sum(count for count, _ in self.batch.requests[:at])
        rows, only = slice(begin, begin + self.batch.requests[at][0]), slice(at, at + 1)
        problem = replace(
            self,
            batch=replace(self.batch, requests=self.batch.requests[only], spare=0, gap=0),
            past=self.past[only],
            blocks=self.blocks[only],
            **{name: getattr(self, name)[rows] for name in self.BY_TOKEN},
        )
        return problem, rows

    def cost(self) -> Cost:
        spec = self.spec
        rows = sum(length for _, length in self.batch.requests)
        pairs = sum(c * (n - c) + c * (c + 1) // 2 for c, n in self.batch.requests)
        return Cost(
            rows * spec.row.nbytes + 2 * self.q.nbytes, 2 * pairs * spec.num_heads * spec.head_dim
        )


@dataclass(slots=True)
class IndexerProblem(ChoiceProblem):
    """See `ChoiceProblem`; heads have weights."""

    spec: IndexerSpec
    weights: Tensor

    BY_TOKEN: ClassVar[tuple[str, ...]] = ("q", "key", "weights")

    def _judged(self, chosen: Tensor) -> Mapping[str, Tensor]:
        """Say how good a choice is; one of another form stands for itself."""
        shape = (len(self.q), self.spec.top_k)
        if chosen.shape != shape or chosen.dtype != torch.int32:
            return {"scores": chosen, "counts": chosen}
        valid = (chosen >= 0) & (chosen <= self.positions()[:, None])
        scores, _ = self._scores()
        longest = scores.shape[1]
        at = torch.where(valid, chosen.long(), longest)
        taken = torch.zeros((len(scores), longest + 1), dtype=torch.bool)
        taken = taken.scatter_(1, at, True)[:, :longest]
        found = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf).gather(1, at)
        ends = torch.where(chosen == -1, 0, torch.arange(1, shape[1] + 1)).amax(1)
        counts = torch.stack((taken.sum(1), valid.sum(1), ends), dim=1)
        return {"scores": _descending(found), "counts": counts}

    def _scores(self) -> tuple[Tensor, Tensor]:
        """Return the scores [tokens, most tokens of a request] float64, -inf for what a query does
        not see, and by how much rounding may move them [tokens]."""
        q, new = self._turned(), self.as_kept(self._new())
        counts = [count for count, _ in self.batch.requests]
        longest = max(length for _, length in self.batch.requests)
        out = torch.full((len(q), longest), -torch.inf, dtype=torch.float64)
        size = torch.zeros(len(q), dtype=torch.float64)
        parts = (t.split(counts) for t in (out, size, q, self.weights.double(), new))
        for rows, sizes, own, weights, fresh, past in zip(*parts, self.past, strict=True):
            keys = torch.cat((self.as_kept(past), fresh)).double()
            each = torch.einsum("qhd,ld->qhl", own, keys).relu()
            scores = torch.einsum("qh,qhl->ql", weights, each)
            seen = torch.ones(scores.shape, dtype=torch.bool).tril(len(keys) - len(own))
            rows[:, : len(keys)] = scores.masked_fill(~seen, -torch.inf)
            sizes += (weights.abs() * own.norm(dim=-1)).sum(1) * keys.norm(dim=-1).max()
        return out, 2 * self._rounding() * size

    def expected(self) -> Mapping[str, Expected]:
        top_k = self.spec.top_k
        scores, slack = self._scores()
        padded_scores = torch.nn.functional.pad(scores, (0, top_k), value=-torch.inf)
        best = _descending(padded_scores.topk(top_k).values)
        number = (self.positions().long() + 1).clamp(max=top_k)
        return {
            "scores": Close(best, "float64", slack=slack[:, None]),
            "counts": Exact(number[:, None].expand(-1, 3)),
            **self.kept(self._new()),
        }


def _descending(scores: Tensor) -> Tensor:
    """Sort rows; what is missing counts as 0, as counts are compared on their own."""
    ordered = scores.sort(dim=1, descending=True).values
    return ordered.masked_fill(ordered == -torch.inf, 0)


def _problem(setup: Setup, source: torch.Generator) -> IndexerProblem:
    spec, batch = setup.spec, setup.shape
    blocks, num_blocks = draw_blocks(spec.block_size, batch, source)
    tokens = sum(count for count, _ in batch.requests)
    return IndexerProblem(
        spec,
        batch,
        normal((tokens, spec.num_heads, spec.head_dim), spec.dtype, source),
        normal((tokens, spec.head_dim), spec.dtype, source),
        earlier(spec, batch, source),
        blocks,
        num_blocks,
        normal((tokens, spec.num_heads), "float32", source),
    )


#: DeepSeek-V3.2's heads.
PUBLISHED = IndexerSpec(64, 128, 64, 2048, "float32", "float32", 32)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    batches = (Batch(((1, 4096),) * 4), Batch(((256, 4096),)))
    return [Setup(in_dtype(PUBLISHED, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
