"""Cases of slot `compressed_attention`: a step's rows are written, then each query attends to its
window and to entries, all or chosen ones.

Rows that no request owns are NaN, as are entries of groups that have not ended.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import CacheView, CompressedAttentionSpec, KVLayout
from hotshoe.slots.reference.compressed import rotate_last
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_conformance.cases.attention import MIXED, ROUNDED_OPERANDS, SHAPES, Batch
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal, vary
from hotshoe_conformance.cases.mla_attention import rotations
from hotshoe_conformance.cases.rows import PagedRows, draw_blocks, earlier
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "compressed_attention"
BASE = CompressedAttentionSpec(4, 32, 16, 12, 4, 5, "float32", "float32", 16, 32**-0.5)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"group": None, "top_k": None},
    {"group": 8, "top_k": None},
    {"group": 32, "top_k": None},
    {"group": 2, "top_k": 64},
    {"top_k": 1},
    {"top_k": 16},
    {"num_heads": 1},
    {"num_heads": 7},
    {"num_heads": 16},
    {"head_dim": 64},
    {"head_dim": 512, "rope_dim": 64, "scale": 512**-0.5},
    {"rope_dim": 32},
    {"window": 1},
    {"window": 16},
    {"window": 500},
    {"block_size": 1},
    {"block_size": 8},
    {"block_size": 64},
    {"scale": 0.4},
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
    group, size = rng.choice(((2, 8), (4, 8), (8, 8), (16, 8), (4, 32), (None, 16)))
    head_dim = rng.choice((32, 64, 128))
    spec = CompressedAttentionSpec(
        rng.randrange(1, 9),
        head_dim,
        rng.choice((8, 16, 32)),
        rng.choice((1, 7, 16, 64)),
        group,
        None if group is None else rng.choice((None, 1, 5, 16)),
        "float32",
        "float32",
        size,
        head_dim**-0.5,
    )
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class CompressedProblem(PagedRows):
    """A step's q and rows, what was cached before, entries, and what was chosen; see `PagedRows`.

    Attributes:
        entries: Of each request [groups, head_dim], in the cache's type.
        own_blocks: Of each request, in the cache of entries.
        chosen: [tokens, top_k] int32; None where all are read.
    """

    spec: CompressedAttentionSpec
    batch: Batch
    q: Tensor
    row: Tensor
    sinks: Tensor
    past: list[Tensor]
    blocks: list[Tensor]
    num_blocks: int
    entries: list[Tensor]
    own_blocks: list[Tensor]
    chosen: Tensor | None

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        run, cache = self._bind(op, place)
        out = run()
        return {"out": out, **self.found(cache)}

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], Tensor]:
        cache, (shape, view) = self.cache(place), self.step(place)
        q, row = place(self.q, written=True), place(self.row)
        positions, table = place(self.positions()), place(rotations(self.spec.rope_dim))
        sinks, prepared = place(self.sinks), op.prepare(shape, view)
        entries: tuple[Tensor, Any, Tensor | None] | None = None
        if self.spec.group is not None:
            own = CacheView(place(self._table()), view.slot_mapping)
            chosen = None if self.chosen is None else place(self.chosen)
            entries = (place(self._held()), op.prepare(shape, own), chosen)

        def run() -> Tensor:
            turned = op.write(q, row, positions, table, cache, view.slot_mapping)
            out: Tensor = op(turned, cache, prepared, entries, sinks, table)
            return out

        return run, cache

    def _table(self) -> Tensor:
        table = torch.zeros(len(self.own_blocks), max(map(len, self.own_blocks))).int()
        for i, blocks in enumerate(self.own_blocks):
            table[i, : len(blocks)] = blocks
        return padded(table, self.batch.spare, poison=-1)

    def _held(self) -> Tensor:
        """Return the cache of entries."""
        spec, dtype = self.spec, torch_dtype(self.spec.kv_dtype)
        assert spec.group is not None
        shape = (self.num_blocks, spec.per_block, spec.head_dim)
        held = torch.full(shape, torch.nan, dtype=dtype)
        for entries, blocks in zip(self.entries, self.own_blocks, strict=True):
            last = torch.arange(len(entries)) * spec.group + spec.group - 1
            held[blocks[last // spec.block_size], last % spec.block_size // spec.group] = entries
        return held

    def _turned(self, x: Tensor, sign: float = 1.0) -> Tensor:
        """Rotate [tokens, heads, head_dim] float32 by the tokens' positions, or back."""
        table = rotations(self.spec.rope_dim)[self.positions().long()].clone()
        table[:, self.spec.rope_dim // 2 :] *= sign
        return rotate_last(x.float(), table, self.spec.rope_dim)

    def expected(self) -> Mapping[str, Expected]:
        spec, requests = self.spec, self.batch.requests
        new = self._turned(self.row[:, None])[:, 0]
        counts = [count for count, _ in requests]
        chosen = [None] * len(counts) if self.chosen is None else self.chosen.split(counts)
        parts = (self._turned(self.q).split(counts), new.split(counts), self.past, self.entries)
        found = [self._attend(*part) for part in zip(*parts, chosen, strict=True)]
        value, size = (torch.cat(tensors) for tensors in zip(*found, strict=True))
        out = self._turned(value, -1.0).flatten(1)
        # A pair of rotated channels mixes what each was added up from.
        size = size.amax(-1, keepdim=True).expand(size.shape).flatten(1)
        plain = spec.dtype == spec.kv_dtype == "float32"
        # What a head puts out may be rounded in front of the rotation, which mixes its channels.
        largest = value.abs().amax(-1, keepdim=True).expand(value.shape).flatten(1)
        slack = 0.0 if plain else 2**-8 * largest
        return {
            "out": Close(out, spec.dtype, size if plain else ROUNDED_OPERANDS * size, slack),
            **self.kept(new),
        }

    def _attend(
        self, q: Tensor, new: Tensor, past: Tensor, entries: Tensor, chosen: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return one request's result [tokens, heads, head_dim], and what was added up for it."""
        spec = self.spec
        rows = torch.cat((self.as_kept(past), self.as_kept(new), entries.float())).double()
        at = torch.arange(len(past), len(past) + len(new))[:, None]
        tokens = torch.arange(len(past) + len(new))
        seen = (tokens <= at) & (tokens > at - spec.window)
        if spec.group is not None:
            there = torch.arange(len(entries)) < (at + 1) // spec.group
            if chosen is not None:
                padded_seen = torch.zeros((len(at), len(entries) + 1), dtype=torch.bool)
                which = chosen.long() % (len(entries) + 1)
                there &= padded_seen.scatter_(1, which, True)[:, :-1]
            seen = torch.cat((seen, there), 1)
        scores = torch.einsum("qhd,kd->qhk", q.double(), rows) * spec.scale
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        beside = self.sinks.double().expand(len(q), -1)[..., None]
        weights = torch.cat((scores, beside), -1).softmax(-1)[..., :-1]
        return (
            torch.einsum("qhk,kd->qhd", weights, rows),
            torch.einsum("qhk,kd->qhd", weights, rows.abs()),
        )

    def cost(self) -> Cost:
        spec, pairs = self.spec, 0
        for count, length in self.batch.requests:
            for at in range(length - count, length):
                entries = 0 if spec.group is None else (at + 1) // spec.group
                pairs += min(at + 1, spec.window) + min(entries, spec.top_k or entries)
        return Cost(2 * self.q.nbytes, 4 * pairs * spec.num_heads * spec.head_dim)


def _problem(setup: Setup, source: torch.Generator) -> CompressedProblem:
    spec, batch = setup.spec, setup.shape
    blocks, num_blocks = draw_blocks(spec.block_size, batch, source)
    own_blocks, _ = draw_blocks(spec.block_size, batch, source)
    tokens = sum(count for count, _ in batch.requests)
    groups = [0 if spec.group is None else length // spec.group for _, length in batch.requests]
    return CompressedProblem(
        spec,
        batch,
        normal((tokens, spec.num_heads, spec.head_dim), spec.dtype, source),
        normal((tokens, spec.head_dim), spec.dtype, source),
        normal((spec.num_heads,), "float32", source),
        earlier(spec, batch, source),
        blocks,
        num_blocks,
        [normal((count, spec.head_dim), spec.kv_dtype, source) for count in groups],
        own_blocks,
        None if spec.top_k is None else _chosen(spec, batch, source),
    )


def _chosen(spec: CompressedAttentionSpec, batch: Batch, source: torch.Generator) -> Tensor:
    """Choose for each query as many entries of those that it sees as it may, in random order."""
    assert spec.group is not None and spec.top_k is not None
    positions = [at for count, length in batch.requests for at in range(length - count, length)]
    chosen = torch.full((len(positions), spec.top_k), -1, dtype=torch.int32)
    for row, at in zip(chosen, positions, strict=True):
        found = torch.randperm((at + 1) // spec.group, generator=source)[: spec.top_k]
        row[: len(found)] = found
    return chosen


#: Attention of the smaller DeepSeek V4 on one of eight ranks.
PUBLISHED = CompressedAttentionSpec(8, 512, 64, 128, 4, 512, "float32", "float32", 64, 512**-0.5)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    batches = (Batch(((1, 4096),) * 4), Batch(((256, 4096),)))
    return [Setup(in_dtype(PUBLISHED, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
