"""Cases of slot `compress`: entries of the groups that a step completes, over paged rows of tokens.

What no request owns is NaN in both caches, as are entries before the step. What must come out is
computed in float64, entry by entry.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import (
    AttentionMetadata,
    CacheView,
    CompressSpec,
    KVLayout,
    StepShape,
    whole_step,
)
from hotshoe.slots.reference.compressed import rotate_last
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_conformance.cases.attention import MIXED, ROUNDED_OPERANDS, SHAPES, Batch
from hotshoe_conformance.cases.base import DTYPES, Setup, Suite, in_dtype, normal, vary
from hotshoe_conformance.cases.mla_attention import rotations
from hotshoe_conformance.cases.rows import draw_blocks
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Exact, Expected

SLOT = "compress"
BASE = CompressSpec(32, 16, 4, True, 1e-6, "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"overlap": False},
    {"group": 8, "overlap": False},
    {"group": 16, "overlap": False},
    {"group": 64, "overlap": False},
    {"group": 2},
    {"head_dim": 128, "rope_dim": 64},
    {"head_dim": 512, "rope_dim": 64},
    {"rope_dim": 0},
    {"rope_dim": 32},
    {"block_size": 1},
    {"block_size": 2},
    {"block_size": 64},
    {"norm_eps": 0.1},
    {"norm_eps": None},
    {"norm_eps": None, "rope_dim": 0, "group": 16, "overlap": False},
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, MIXED, True) for spec in vary(BASE, VARIATIONS)]
    mixed = (replace(BASE, dtype="bfloat16"), replace(BASE, kv_dtype="bfloat16"))
    specs += [Setup(spec, MIXED, True) for spec in mixed]
    return specs + [
        Setup(in_dtype(BASE, dtype), shape, i in (0, 2, 4))
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    ]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    group, size = rng.choice(((2, 8), (4, 8), (8, 8), (16, 8), (4, 32), (32, 16)))
    sizes = (rng.choice((32, 64, 128)), rng.choice((8, 16, 32)), group, rng.random() < 0.5)
    spec = CompressSpec(*sizes, 1e-6, "float32", "float32", size)
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class CompressProblem:
    """Rows of all tokens of each request [tokens, 2 * channels], of which the last are the step's,
    blocks of both caches, and heads q [num_tokens, heads, head_dim]."""

    spec: CompressSpec
    batch: Batch
    rows: list[Tensor]
    q: Tensor
    bias: Tensor
    norm: Tensor | None
    blocks: tuple[list[Tensor], list[Tensor]]
    num_blocks: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        run, held, entries = self._bind(op, place)
        turned = run()
        found = entries.cpu()
        made = [found[block, at] for _, _, block, at in self._made()]
        rest = torch.ones(found.shape[:2], dtype=torch.bool)
        for _, _, block, at in self._made():
            rest[block, at] = False
        entries = _stack(made, found)
        return {"entries": entries, "other entries": found[rest], "rows": held, "turned": turned}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], Tensor, Tensor]:
        spec, counts = self.spec, [count for count, _ in self.batch.requests]
        entries = place(self._before(), written=True)
        held = place(self._kept(counts), written=True)
        brought = place(torch.cat([r[-n:] for r, n in zip(self.rows, counts, strict=True)]))
        where = place(torch.cat([s[-n:] for s, n in zip(self._slots(), counts, strict=True)]))
        q, positions = place(self.q, written=True), place(self._positions())
        steps, table = self._steps(place), place(rotations(spec.rope_dim))
        norm = None if self.norm is None else place(self.norm)
        rest = (place(self.bias), norm, table)

        def run() -> Tensor:
            op.write(brought, held, where)
            op(held, entries, steps, *rest)
            turned: Tensor = op.turn(q, positions, table)
            return turned

        return run, held, entries

    def _positions(self) -> Tensor:
        spans = [torch.arange(length - count, length) for count, length in self.batch.requests]
        return torch.cat(spans).int()

    def _slots(self) -> list[Tensor]:
        """Return where the rows of each request lie."""
        size = self.spec.block_size
        at = [torch.arange(len(rows)) for rows in self.rows]
        pairs = zip(at, self.blocks[0], strict=True)
        return [(blocks[a // size] * size + a % size).int() for a, blocks in pairs]

    def _kept(self, without: Sequence[int]) -> Tensor:
        """Return the cache of tokens without so many last rows of each request."""
        spec, width = self.spec, self.spec.token_row.width
        shape = (self.num_blocks, spec.block_size, width)
        cache = torch.full(shape, torch.nan, dtype=torch_dtype(spec.dtype))
        for rows, slots, count in zip(self.rows, self._slots(), without, strict=True):
            past = len(rows) - count
            cache.view(-1, width)[slots[:past].long()] = rows[:past]
        return cache

    def _steps(self, place: Place) -> tuple[AttentionMetadata, AttentionMetadata]:
        requests, spare = self.batch.requests, self.batch.spare
        starts = torch.tensor([0, *accumulate(count for count, _ in requests)]).int()
        lengths = torch.tensor([length for _, length in requests]).int()
        most = (max(c for c, _ in requests), max(n for _, n in requests))
        steps = []
        for owned in self.blocks:
            table = torch.zeros(len(requests), max(map(len, owned)) + spare).int()
            for row, blocks in enumerate(owned):
                table[row, : len(blocks)] = blocks
            slots = place(torch.zeros(int(starts[-1])).int())
            shape = StepShape(len(requests), place(starts), place(lengths), *most)
            view = CacheView(place(padded(table, spare, poison=-1)), slots)
            steps.append(whole_step(shape, view))
        return steps[0], steps[1]

    def _before(self) -> Tensor:
        spec = self.spec
        shape = (self.num_blocks, spec.per_block, spec.head_dim)
        return torch.full(shape, torch.nan, dtype=torch_dtype(spec.kv_dtype))

    def _made(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield request, group, block and place of each entry that the step completes."""
        spec = self.spec
        for i, (count, length) in enumerate(self.batch.requests):
            for e in range((length - count) // spec.group, length // spec.group):
                last = e * spec.group + spec.group - 1
                block = int(self.blocks[1][i][last // spec.block_size])
                yield i, e, block, last % spec.block_size // spec.group

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        made = [self._entry(i, e) for i, e, _, _ in self._made()]
        values = _stack([value for value, _ in made], torch.empty(0, 0, spec.head_dim))
        sizes = _stack([size for _, size in made], torch.empty(0, 0, spec.head_dim))
        before, rest = self._before(), torch.ones(self._before().shape[:2], dtype=torch.bool)
        for _, _, block, at in self._made():
            rest[block, at] = False
        through = spec.dtype if spec.dtype != "float32" else None
        close = Close(values, spec.kv_dtype, ROUNDED_OPERANDS * sizes, through=through)
        table = rotations(spec.rope_dim)[self._positions().long()]
        turned = rotate_last(self.q.float(), table, spec.rope_dim)
        largest = self.q.float().abs().amax(-1, keepdim=True)
        return {
            "entries": close,
            "other entries": Exact(before[rest]),
            "rows": Exact(self._kept([0] * len(self.rows))),
            "turned": Close(turned, spec.dtype, largest),
        }

    def _entry(self, i: int, e: int) -> tuple[Tensor, Tensor]:
        """Return an entry [head_dim], and how large its numbers may be."""
        spec, dim = self.spec, self.spec.head_dim
        values, gates = self.rows[i].double().chunk(2, -1)
        gates = gates + self.bias.double()[torch.arange(len(gates)) % spec.group]
        own = slice(e * spec.group, (e + 1) * spec.group)
        parts = [(values[own, -dim:], gates[own, -dim:])]
        if spec.overlap and e:
            before = slice((e - 1) * spec.group, e * spec.group)
            parts.append((values[before, :dim], gates[before, :dim]))
        value, gate = (torch.cat(part) for part in zip(*parts, strict=True))
        made = (gate.softmax(0) * value).sum(0)
        size = (gate.softmax(0) * value.abs()).sum(0)
        factor = torch.ones(dim, dtype=torch.float64)
        if self.norm is not None and spec.norm_eps is not None:
            factor = torch.rsqrt(made.square().mean() + spec.norm_eps) * self.norm.double()
        table = rotations(spec.rope_dim)[e * spec.group][None].double()
        turned = rotate_last((made * factor)[None, None].float(), table.float(), spec.rope_dim)
        return turned[0, 0], (size * factor.abs()).amax().expand(dim).float()


def _stack(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    """Stack entries [n, head_dim], of which there may be none."""
    return torch.stack(list(rows)) if rows else like.new_zeros((0, like.shape[-1]))


def _problem(setup: Setup, source: torch.Generator) -> CompressProblem:
    spec, batch = setup.spec, setup.shape
    first, num_blocks = draw_blocks(spec.block_size, batch, source)
    second, _ = draw_blocks(spec.block_size, batch, source)
    tokens = sum(count for count, _ in batch.requests)
    shapes = [(length, 2 * spec.channels) for _, length in batch.requests]
    return CompressProblem(
        spec,
        batch,
        [normal(shape, spec.dtype, source) for shape in shapes],
        normal((tokens, 3, spec.head_dim), spec.dtype, source),
        normal((spec.group, spec.channels), "float32", source),
        None if spec.norm_eps is None else normal((spec.head_dim,), spec.dtype, source),
        (first, second),
        num_blocks,
    )


SUITE = Suite(SLOT, _grid, _draw, _problem)
