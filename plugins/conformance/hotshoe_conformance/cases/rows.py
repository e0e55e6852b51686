"""Caches of one row for each token in cases: where rows lie, and what is there afterwards.

Rows that no request owns are NaN, as are those behind a request's last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import CacheView, StepShape
from hotshoe.slots.reference.rows import held, packed, unpacked
from hotshoe_conformance.cases.attention import MIXED, ROUNDED_OPERANDS, SHAPES, Batch
from hotshoe_conformance.cases.base import DTYPES, FAR, Setup, in_dtype, normal, vary
from hotshoe_conformance.cases.kv import STEPS
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import TOLERANCES, Close, Exact, Expected

#: Quantized rows, as changes of a specification.
QUANTIZED: tuple[dict[str, Any], ...] = tuple({"kv_dtype": kind} for kind in STEPS)
#: Steps of an 8-bit type that a rotated number may be off, as for keys and values.
NEIGHBOR = 1.5


class PagedRows:
    """What problems over such a cache have in common.

    Attributes:
        spec: Has block_size, row, dtype and kv_dtype.
        past: Of each request, what the rows of earlier steps stand for [tokens, channels].
        blocks: Of each request, in order.
    """

    __slots__ = ()
    spec: Any
    batch: Batch
    past: list[Tensor]
    blocks: list[Tensor]
    num_blocks: int

    def slots(self) -> list[Tensor]:
        """Return the place of every token of each request among all rows of the cache."""
        size = self.spec.block_size
        return [
            blocks[at // size] * size + at % size
            for (_, length), blocks in zip(self.batch.requests, self.blocks, strict=True)
            for at in [torch.arange(length)]
        ]

    def new_slots(self) -> Tensor:
        """Return those of the step's tokens."""
        counts = [count for count, _ in self.batch.requests]
        return torch.cat([s[-c:] for s, c in zip(self.slots(), counts, strict=True)])

    def rows(self) -> Tensor:
        """Return the cache before the step [num_blocks * block_size, width]."""
        form, kind = self.spec.row, held(self.spec.row)
        shape = (self.num_blocks * self.spec.block_size, form.width)
        rows = torch.full(shape, 0xFF if form.quantized else torch.nan, dtype=kind)
        for past, slots in zip(self.past, self.slots(), strict=True):
            rows[slots[: len(past)]] = packed(form, past)
        return rows

    def as_kept(self, values: Tensor) -> Tensor:
        """Return numbers [tokens, channels] as the cache has them, float32."""
        return unpacked(self.spec.row, packed(self.spec.row, values))

    def far_blocks(self) -> int:
        """Return how many blocks lie before the first one in use."""
        return -(-self.batch.far // (self.spec.block_size * self.spec.row.width))

    def cache(self, place: Place) -> Tensor:
        """Return it on the device, with the blocks before the first one in use."""
        shape = (self.num_blocks, self.spec.block_size, self.spec.row.width)
        return place.behind(self.rows().view(shape), self.far_blocks(), written=True)

    def step(self, place: Place) -> tuple[StepShape, CacheView]:
        """Return the step as operations plan it."""
        requests, far = self.batch.requests, self.far_blocks()
        starts = [0, *accumulate(count for count, _ in requests)]
        lengths = [length for _, length in requests]
        table = torch.zeros(len(requests), max(map(len, self.blocks)) + self.batch.spare).int()
        for row, blocks in enumerate(self.blocks):
            table[row, : len(blocks)] = blocks + far
        shape = StepShape(
            len(requests),
            place(torch.tensor(starts, dtype=torch.int32)),
            place(torch.tensor(lengths, dtype=torch.int32)),
            max(count for count, _ in requests),
            max(lengths),
        )
        slots = place((self.new_slots() + far * self.spec.block_size).int())
        return shape, CacheView(place(padded(table, self.batch.spare, poison=-1)), slots)

    def positions(self) -> Tensor:
        """Return the position of each token of the step, int32."""
        return torch.cat([torch.arange(n - count, n) for count, n in self.batch.requests]).int()

    def found(self, cache: Tensor) -> Mapping[str, Tensor]:
        """Return what is in the cache after the step, on the host."""
        rows = cache[self.far_blocks() :].flatten(0, 1).cpu()
        form, written = self.spec.row, rows[self.new_slots()]
        written = unpacked(form, written) if form.quantized else written
        return {"written": written, "other rows": rows[self._rest()]}

    def kept(self, new: Tensor) -> Mapping[str, Expected]:
        """Return what has to be there, given the step's rows [tokens, channels] float32."""
        spec = self.spec
        largest = ROUNDED_OPERANDS * new.abs().amax(-1, keepdim=True).expand(new.shape)
        through = spec.dtype if spec.dtype != "float32" else None
        written = Close(new, spec.kv_dtype, largest, through=through)
        if spec.row.quantized:
            value, slack = self.as_kept(new), self._slack(new)
            written = Close(value, "float32", largest, slack, through=through)
        return {"written": written, "other rows": Exact(self.rows()[self._rest()])}

    def _slack(self, new: Tensor) -> Tensor:
        """Return by how much quantized numbers may differ, as rounding twice takes some to a
        neighbor."""
        form, step = self.spec.row, NEIGHBOR * STEPS[self.spec.kv_dtype]
        numbers, exact = new.abs().split((form.numbers, form.exact), dim=-1)
        largest = numbers.amax(-1, keepdim=True).expand(numbers.shape)
        reach = largest if form.kv_dtype == "int8" else numbers + largest * 2**-14
        return torch.cat((step * reach, TOLERANCES[self.spec.dtype].rounding * exact), dim=-1)

    def _rest(self) -> Tensor:
        rest = torch.ones(self.num_blocks * self.spec.block_size, dtype=torch.bool)
        rest[self.new_slots()] = False
        return rest


def draw_blocks(block_size: int, batch: Batch, source: torch.Generator) -> tuple[list[Tensor], int]:
    """Hand out blocks in random order; return those of each request, and how many there are."""
    needed = [-(-length // block_size) for _, length in batch.requests]
    order = torch.randperm(sum(needed) + 3, generator=source)
    return list(order[: sum(needed)].split(needed)), len(order)


def earlier(spec: Any, batch: Batch, source: torch.Generator) -> list[Tensor]:
    """Draw what the rows of earlier steps stand for."""
    kind = spec.dtype if spec.row.quantized else spec.kv_dtype
    shapes = [(length - count, spec.row.channels) for count, length in batch.requests]
    return [normal(shape, kind, source) for shape in shapes]


def grid(base: Any, variations: Sequence[Mapping[str, Any]]) -> list[Setup]:
    """Return setups of a slot over such a cache: its variations, types and shapes of batches."""
    specs = [Setup(spec, MIXED, True) for spec in vary(base, (*variations, *QUANTIZED))]
    specs += [
        Setup(replace(base, dtype="bfloat16"), MIXED, True),
        Setup(replace(base, kv_dtype="bfloat16"), MIXED, True),
    ]
    shapes = [
        Setup(in_dtype(base, dtype), shape, i in (0, 2, 4))
        for dtype in DTYPES
        for i, shape in enumerate(SHAPES)
    ]
    far = Setup(in_dtype(base, "bfloat16"), replace(MIXED, far=FAR), bytes=2 * FAR + (1 << 20))
    return [*specs, *shapes, far]
