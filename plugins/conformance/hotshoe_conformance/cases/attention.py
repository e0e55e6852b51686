"""Cases of slot `attention`: paged batches over caches in the candidate's own layout.

Everything in the cache that no request owns is NaN, as are the slots behind a request's last token;
what lies before every window is large. A kernel that reads a token too many shows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import Alibi, AttentionMetadata, AttentionSpec, KVLayout
from hotshoe.slots.reference.attention import attend
from hotshoe.slots.reference.kv import LIMITS, kv_of
from hotshoe_conformance.cases.base import (
    DTYPES,
    FAR,
    Cost,
    Setup,
    Suite,
    in_dtype,
    normal,
    vary,
)
from hotshoe_conformance.cases.kv import GIVEN, QUANTIZED, as_kept, give_scales, held_as
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Expected


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests as (tokens of this step, tokens in all).

    `gap` elements lie between the tokens of q, `spare` further columns in the block table, and
    `far` elements before the first block in use. With `apart` each token is a request, and spans
    say of which of these here it is.
    """

    requests: tuple[tuple[int, int], ...]
    gap: int = 0
    spare: int = 0
    far: int = 0
    apart: bool = False


SLOT = "attention"
BASE = AttentionSpec(4, 2, 64, "float32", "float32", 16, 0.125)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"num_heads": 14},
    {"num_heads": 1, "num_kv_heads": 1},
    {"head_dim": 32},
    {"head_dim": 80},
    {"head_dim": 96},
    {"head_dim": 128},
    {"head_dim": 192},
    {"head_dim": 256},
    {"block_size": 1},
    {"block_size": 8},
    {"block_size": 32},
    {"block_size": 64},
    {"block_size": 128},
    {"scale": 0.5},
    {"window": 1},
    {"window": 7},
    {"window": 64},
    {"softcap": 5.0},
    {"sinks": True},
    {"window": 20, "sinks": True},
    {"window": 20, "softcap": 20.0},
    {"v_head_dim": 32},
    {"alibi": Alibi(4)},
    {"alibi": Alibi(14, 8, 4.0, 0.5), "window": 20},
    {"num_heads": 14, "alibi": Alibi(14)},
    {"head_dim": 96, "v_head_dim": 64, "window": 20, "sinks": True},
    *QUANTIZED,
    {"window": 20, "sinks": True, "head_dim": 80, **QUANTIZED[0]},
)
MIXED = Batch(((1, 45), (1, 1), (7, 7), (5, 40), (1, 16), (1, 17)), gap=128, spare=3)
#: As drafts are verified: more tokens than a product's rows have room for, too.
APART = Batch(((3, 45), (1, 1), (19, 90), (2, 2)), spare=3, apart=True)
SHAPES = (
    Batch(((1, 1),)),
    Batch(((1, 300),)),
    Batch(((37, 37),)),
    Batch(((16, 16), (16, 32))),
    Batch(((5, 23),), gap=64),
    Batch(tuple((1, n) for n in range(1, 34)), spare=2),
    Batch(((1, 1000), (129, 129), (64, 600))),
    Batch(tuple((1, 1 + 13 * n % 90) for n in range(200))),
)
#: Weights and queries may be rounded to the type before they are multiplied.
ROUNDED_OPERANDS = 16
#: A soft cap's hyperbolic tangent often comes from an exponential, 1 - 2 / (1 + e^2x): its error is
#: a few roundings of 1, not of x. Of the cap, so much may a score be off, and twice that a weight.
TANH_ERROR = 2**-22


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, MIXED, True) for spec in vary(BASE, VARIATIONS)]
    specs += [
        Setup(replace(BASE, dtype="bfloat16"), MIXED, True),
        Setup(replace(BASE, kv_dtype="bfloat16"), MIXED, True),
    ]
    small = {0, 2, 4}
    shapes = [
        Setup(in_dtype(BASE, dtype), shape, i in small)
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    ]
    far = Setup(in_dtype(BASE, "bfloat16"), replace(MIXED, far=FAR), bytes=4 * FAR + (1 << 20))
    windowed = replace(BASE, num_heads=14, window=20, sinks=True)
    apart = [Setup(in_dtype(spec, d), APART, True) for d in DTYPES for spec in (BASE, windowed)]
    return [*specs, *shapes, far, *apart]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    kv_heads = rng.choice((1, 2, 3, 4, 8))
    head_dim = rng.choice((32, 64, 64, 96, 128))
    spec = AttentionSpec(
        kv_heads * rng.randrange(1, 9),
        kv_heads,
        head_dim,
        "float32",
        "float32",
        rng.choice((8, 16, 32)),
        head_dim**-0.5,
        window=rng.choice((None, rng.randrange(1, 60))),
        softcap=rng.choice((None, None, rng.uniform(2, 50))),
        sinks=rng.random() < 0.3,
    )
    if spec.softcap is None and rng.random() < 0.2:
        spec = replace(spec, alibi=Alibi(2 * spec.num_heads, rng.choice((0, spec.num_heads))))
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(6)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    batch = Batch(tuple(requests[: rng.randrange(1, 7)]), 8 * rng.randrange(0, 9), rng.randrange(4))
    return Setup(in_dtype(spec, rng.choice(DTYPES)), batch)


@dataclass(slots=True)
class AttentionProblem:
    """Per request the keys and values [tokens, kv heads, head_dim] and its blocks, in order."""

    spec: AttentionSpec
    batch: Batch
    q: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    blocks: list[Tensor]
    num_blocks: int
    sinks: Tensor | None

    def _cache(self, layout: KVLayout, place: Place) -> Tensor:
        spec = self.spec
        numel, dtype, poison = held_as(spec)
        shape = (2, self.num_blocks, numel + layout.gap)
        cache = torch.full(shape, poison, dtype=dtype)[..., :numel]
        paged = kv_of(cache, spec, layout, torch.tensor(GIVEN))
        for k, v, blocks in zip(self.keys, self.values, self.blocks, strict=True):
            at = torch.arange(len(k))
            slots = blocks[at // spec.block_size] * spec.block_size + at % spec.block_size
            paged.write(k, v, slots)
        before = self._far_blocks()
        if not before:
            return place(cache)
        far = place.empty(2, before + shape[1], shape[2], dtype=dtype)[..., :numel]
        far[:, before:].copy_(place(cache))
        return far

    def _far_blocks(self) -> int:
        spec = self.spec
        return -(-self.batch.far // (spec.block_size * spec.num_kv_heads * spec.head_dim))

    def _metadata(self, place: Place) -> AttentionMetadata:
        requests = self.batch.requests
        counts = torch.tensor([count for count, _ in requests])
        starts = torch.zeros(len(requests) + 1, dtype=torch.int32)
        starts[1:] = counts.cumsum(0)
        width = max(map(len, self.blocks)) + self.batch.spare
        # Columns behind a request's last block are not its own, and may hold any valid block.
        table = torch.zeros(len(requests), width, dtype=torch.int32)
        for row, blocks in enumerate(self.blocks):
            table[row, : len(blocks)] = blocks + self._far_blocks()
        slots = [
            (blocks[at // self.spec.block_size] + self._far_blocks()) * self.spec.block_size
            + at % self.spec.block_size
            for (count, length), blocks in zip(requests, self.blocks, strict=True)
            for at in [torch.arange(length - count, length)]
        ]
        lengths, spans = torch.tensor([length for _, length in requests]), None
        if self.batch.apart:
            ends, tokens = starts[1:].repeat_interleave(counts), torch.arange(len(self.q))
            lengths = lengths.repeat_interleave(counts) - (ends - 1 - tokens)
            spans = torch.stack((starts[:-1].repeat_interleave(counts), ends), 1)
            table = table.repeat_interleave(counts, 0)
            starts = torch.arange(len(tokens) + 1, dtype=torch.int32)
        return AttentionMetadata(
            num_reqs=len(lengths),
            query_start_loc=place(starts),
            seq_lens=place(lengths.int()),
            block_table=place(padded(table, self.batch.spare, poison=-1)),
            slot_mapping=place(torch.cat(slots).int()),
            max_query_len=int(starts.diff().max()),
            max_seq_len=int(lengths.max()),
            spans=None if spans is None else place(spans),
        )

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        return {"out": self.prepare(op, place)()}

    def prepare(self, op: Any, place: Place) -> Callable[[], Tensor]:
        q, cache = place(padded(self.q, self.batch.gap)), self._cache(op.layout, place)
        metadata = self._metadata(place)
        give_scales(op, self.spec, place)
        sinks = None if self.sinks is None else place(self.sinks)
        return lambda: op(q, cache, metadata, sinks)

    def expected(self) -> Mapping[str, Expected]:
        parts, magnitudes = [], []
        queries = self.q.float().split([count for count, _ in self.batch.requests])
        for q, k, v in zip(queries, self.keys, self.values, strict=True):
            both = torch.cat((v.float(), v.float().abs()), dim=-1)
            out = attend(self.spec, q, k.float(), both, self.sinks)
            value, magnitude = _split(out)
            parts.append(value)
            magnitudes.append(magnitude)
        value = torch.cat(parts).flatten(1)
        magnitude = torch.cat(magnitudes).flatten(1)
        slack = 2 * TANH_ERROR * (self.spec.softcap or 0.0) * magnitude
        if self.spec.dtype != "float32" or self.spec.kv_dtype != "float32":
            magnitude = ROUNDED_OPERANDS * magnitude
        return {"out": Close(value, self.spec.dtype, magnitude, slack)}

    def alone(self) -> tuple[AttentionProblem, slice]:
        at = len(self.batch.requests) // 2
        begin = sum(count for count, _ in self.batch.requests[:at])
        rows = slice(begin, begin + self.batch.requests[at][0])
        only = slice(at, at + 1)
        problem = replace(
            self,
            batch=replace(self.batch, requests=self.batch.requests[only], spare=0, gap=0),
            q=self.q[rows],
            keys=self.keys[only],
            values=self.values[only],
            blocks=self.blocks[only],
        )
        return problem, rows

    def cost(self) -> Cost:
        read = sum(k.nbytes + v.nbytes for k, v in zip(self.keys, self.values, strict=True))
        pairs = sum(
            count * (length - count) + count * (count + 1) // 2
            for count, length in self.batch.requests
        )
        dims = self.spec.head_dim + self.spec.value_dim
        return Cost(read + 2 * self.q.nbytes, 2 * pairs * self.spec.num_heads * dims)


def _split(out: Tensor) -> tuple[Tensor, Tensor]:
    value, magnitude = out.chunk(2, dim=-1)
    return value, magnitude


def _problem(setup: Setup, source: torch.Generator) -> AttentionProblem:
    spec, batch = setup.spec, setup.shape
    keys, values = [], []
    for count, length in batch.requests:
        shape = (length, spec.num_kv_heads, spec.head_dim)
        dtype = "float32" if spec.kv_dtype in LIMITS else spec.kv_dtype
        key = normal(shape, dtype, source)
        value = normal((*shape[:2], spec.value_dim), dtype, source)
        if spec.window is not None:
            value[: max(0, length - count - spec.window + 1)] = 1000.0
        key, value = as_kept(spec, key, value)
        keys.append(key)
        values.append(value)
    needed = [-(-length // spec.block_size) for _, length in batch.requests]
    num_blocks = sum(needed) + 3
    order = torch.randperm(num_blocks, generator=source)
    tokens = sum(count for count, _ in batch.requests)
    return AttentionProblem(
        spec,
        batch,
        normal((tokens, spec.num_heads, spec.head_dim), spec.dtype, source),
        keys,
        values,
        list(order[: sum(needed)].split(needed)),
        num_blocks,
        torch.randn(spec.num_heads, generator=source) if spec.sinks else None,
    )


LLAMA = AttentionSpec(32, 8, 128, "float32", "float32", 32, 128**-0.5)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    batches = (Batch(((1, 2048),) * 4), Batch(((512, 512),)))
    return [Setup(in_dtype(LLAMA, d), batch) for d in DTYPES[:2] for batch in batches]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
