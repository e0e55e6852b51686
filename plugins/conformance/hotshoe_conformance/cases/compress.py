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

from hotshoe.slots import CacheView, CompressSpec, KVLayout, StepShape, whole_step
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
    {"rope_dim": 32},
    {"block_size": 1},
    {"block_size": 2},
    {"block_size": 64},
    {"norm_eps": 0.1},
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
    """Rows of all tokens of each request [tokens, 2 * channels], and blocks of both caches."""

    spec: CompressSpec
    batch: Batch
    rows: list[Tensor]
    bias: Tensor
    norm: Tensor
    blocks: tuple[list[Tensor], list[Tensor]]
    num_blocks: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        run, entries = self._bind(op, place)
        run()
        found = entries.cpu()
        made = [found[block, at] for _, _, block, at in self._made()]
        rest = torch.ones(found.shape[:2], dtype=torch.bool)
        for _, _, block, at in self._made():
            rest[block, at] = False
        return {"entries": _stack(made, found), "other entries": found[rest]}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], object], Tensor]:
        spec, requests = self.spec, self.batch.requests
        tokens = torch.full(
            (self.num_blocks, spec.block_size, spec.token_row.width),
            torch.nan,
            dtype=torch_dtype(spec.dtype),
        )
        for rows, blocks in zip(self.rows, self.blocks[0], strict=True):
            at = torch.arange(len(rows))
            tokens[blocks[at // spec.block_size], at % spec.block_size] = rows
        entries = place(self._before(), written=True)
        starts = torch.tensor([0, *accumulate(count for count, _ in requests)]).int()
        lengths = torch.tensor([length for _, length in requests]).int()
        most = (max(c for c, _ in requests), max(n for _, n in requests))
        steps = []
        for owned in self.blocks:
            table = torch.zeros(len(requests), max(map(len, owned)) + self.batch.spare).int()
            for row, blocks in enumerate(owned):
                table[row, : len(blocks)] = blocks
            slots = place(torch.zeros(int(starts[-1])).int())
            shape = StepShape(len(requests), place(starts), place(lengths), *most)
            view = CacheView(place(padded(table, self.batch.spare, poison=-1)), slots)
            steps.append(whole_step(shape, view))
        rest = (place(self.bias), place(self.norm), place(rotations(spec.rope_dim)))
        held = place(tokens)

        def run() -> object:
            op(held, entries, (steps[0], steps[1]), *rest)
            return entries

        return run, entries

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
        return {"entries": close, "other entries": Exact(before[rest])}

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
    shapes = [(length, 2 * spec.channels) for _, length in batch.requests]
    return CompressProblem(
        spec,
        batch,
        [normal(shape, spec.dtype, source) for shape in shapes],
        normal((spec.group, spec.channels), "float32", source),
        normal((spec.head_dim,), spec.dtype, source),
        (first, second),
        num_blocks,
    )


SUITE = Suite(SLOT, _grid, _draw, _problem)
