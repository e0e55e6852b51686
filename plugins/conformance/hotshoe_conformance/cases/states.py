"""What cases over cached states share: batches of prompts and single tokens, and the caches.

The cache is NaN but for the states that sequences carry on. Afterwards the blocks that the contract
names hold the new states, and all others are as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from hotshoe.slots import CacheView, StepShape
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, in_dtype, normal, vary
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Exact, Expected, Finding


@dataclass(frozen=True, slots=True)
class States:
    """Requests as (tokens of this step, tokens in all)."""

    requests: tuple[tuple[int, int], ...]


MIXED = States(((1, 45), (1, 1), (7, 7), (21, 40), (1, 16), (1, 17), (2, 32)))
SHAPES = (
    States(((1, 1),)),
    States(((37, 37),)),
    States(((16, 16), (16, 32))),
    States(tuple((1, n) for n in range(1, 34))),
    States(((150, 150), (1, 9), (70, 200))),
)
#: Operands may be rounded to the type before they are multiplied.
ROUNDED_OPERANDS = 16
#: Operands are themselves sums, those of the convolution, behind an activation of this slope.
STEEPEST = 1.1


def grid_of(base: Any, variations: Sequence[Mapping[str, Any]]) -> list[Setup]:
    """Return every variation over mixed requests, and every type over batches of each shape."""
    small = {0, 2}
    return [
        *(Setup(spec, MIXED, True) for spec in vary(base, variations)),
        *(
            Setup(in_dtype(base, dtype), shape, i in small)
            for dtype in DTYPES
            for i, shape in enumerate(SHAPES)
        ),
    ]


def draw_requests(rng: random.Random, spec: Any) -> Setup:
    """Draw up to five requests, and the type in which a specification is asked for."""
    lengths = [rng.choice((1, rng.randrange(1, 20), rng.randrange(1, 150))) for _ in range(5)]
    requests = [(rng.choice((1, rng.randrange(1, n + 1))), n) for n in lengths]
    return Setup(in_dtype(spec, rng.choice(DTYPES)), States(tuple(requests[: rng.randrange(1, 6)])))


def bench_of(base: Any) -> list[Setup]:
    """Return a step of single tokens and one of a prompt, in two types."""
    batches = (States(((1, 64),) * 16), States(((512, 512),)))
    return [Setup(in_dtype(base, d), batch) for d in DTYPES[:2] for batch in batches]


class Recurrence(Protocol):
    """One sequence in float64, token by token; `sizes` are the magnitudes behind `state`."""

    inputs: Tensor
    state: Tensor
    sizes: Tensor

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        """Start behind earlier tokens."""

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return a token's result and its magnitude."""


@dataclass(slots=True)
class StateProblem:
    """The projection's rows, what each sequence carries on, and its blocks by column."""

    spec: Any
    batch: States
    projected: Tensor
    conv: list[Tensor]
    ssm: list[Tensor]
    table: Tensor
    num_blocks: int
    weights: Any
    recurrence: Callable[[Any, Any], Recurrence]

    def _column(self, length: int) -> int:
        """Return the column of the state behind so many tokens."""
        return 0 if self.spec.checkpoints == "none" else (length - 1) // self.spec.block_size

    def _shape(self, place: Place) -> StepShape:
        counts = [count for count, _ in self.batch.requests]
        lens = [length for _, length in self.batch.requests]
        starts = torch.tensor([0, *counts]).cumsum(0).int()
        seq_lens = torch.tensor(lens, dtype=torch.int32)
        longest = (max(counts), max(lens))
        return StepShape(len(lens), place(starts), place(seq_lens), *longest, (counts, lens))

    def _caches(self) -> tuple[Tensor, Tensor]:
        """Return both caches with what sequences carry on, NaN elsewhere."""
        nan = float("nan")
        spec, count = self.spec, self.num_blocks
        shape = (count, spec.conv_width - 1, spec.conv_size)
        conv = torch.full(shape, nan, dtype=torch_dtype(spec.conv_dtype))
        shape = (count, *self.ssm[0].shape)
        ssm = torch.full(shape, nan, dtype=torch_dtype(_state_dtype(spec)))
        for row, (count, length) in enumerate(self.batch.requests):
            if length > count:
                block = self.table[row, self._column(length - count)]
                conv[block], ssm[block] = self.conv[row], self.ssm[row]
        return conv, ssm

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        call, (conv, ssm) = self._bind(op, place)
        return {"out": call(), "conv": conv.flatten(1)} | _kept(ssm, lambda: ssm.flatten(1))

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        return self._bind(op, place)[0]

    def _bind(self, op: Any, place: Place) -> tuple[Callable[[], Tensor], tuple[Tensor, Tensor]]:
        conv, ssm = (place(cache, written=True) for cache in self._caches())
        values = {f.name: getattr(self.weights, f.name) for f in fields(self.weights)}
        held = {name: None if t is None else place(t) for name, t in values.items()}
        weights = type(self.weights)(**held)
        projected = place(self.projected, written=True)
        shape = self._shape(place)
        view = CacheView(place(self.table), place(torch.zeros(len(projected), dtype=torch.int32)))
        prepared = op.prepare(shape, view)
        cache = (conv, ssm) if ssm.numel() else (conv,)
        return lambda: op(projected, cache, prepared, weights), (conv, ssm)

    def expected(self) -> Mapping[str, Expected]:
        spec = self.spec
        conv, ssm = (cache.double() for cache in self._caches())
        sizes, written = ssm.clone(), torch.zeros(self.num_blocks, dtype=torch.bool)
        values, magnitudes, begin = [], [], 0
        for row, (count, length) in enumerate(self.batch.requests):
            steps = self.recurrence(spec, self.weights)
            if length > count:
                steps.carry_on(self.conv[row], self.ssm[row])
            for i in range(count):
                value, magnitude = steps(self.projected[begin + i].double())
                values.append(value)
                magnitudes.append(magnitude)
                total = length - count + i + 1
                inside = spec.checkpoints == "all" and total % spec.block_size == 0
                if i + 1 == count or inside:
                    block = self.table[row, self._column(total)]
                    conv[block], ssm[block], sizes[block] = steps.inputs, steps.state, steps.sizes
                    written[block] = True
            begin += count
        factor = 1 if spec.dtype == "float32" else ROUNDED_OPERANDS
        conv, ssm, sizes = conv.flatten(1), ssm.flatten(1), factor * sizes.flatten(1)
        return {
            "out": Close(torch.stack(values), spec.dtype, factor * torch.stack(magnitudes)),
            "conv": Kept(conv, spec.conv_dtype, conv.abs(), written, self._caches()[0].flatten(1)),
        } | _kept(
            ssm,
            lambda: Kept(ssm, spec.state_dtype, sizes, written, self._caches()[1].flatten(1)),
        )

    def alone(self) -> tuple[StateProblem, slice]:
        at = len(self.batch.requests) // 2
        begin = sum(count for count, _ in self.batch.requests[:at])
        rows, only = slice(begin, begin + self.batch.requests[at][0]), slice(at, at + 1)
        problem = replace(
            self,
            batch=States(self.batch.requests[only]),
            projected=self.projected[rows],
            conv=self.conv[only],
            ssm=self.ssm[only],
            table=self.table[only],
        )
        return problem, rows

    def cost(self) -> Cost:
        states = sum(ssm.nbytes for ssm in self.ssm)
        pairs = len(self.projected) * self.spec.inner_size * self.ssm[0].shape[-1]
        return Cost(2 * states + 2 * self.projected.nbytes, 6 * pairs)


def _state_dtype(spec: Any) -> str:
    """Return the type of states, or that of inputs where nothing else is kept."""
    return str(getattr(spec, "state_dtype", spec.conv_dtype))


def _kept(states: Tensor, make: Callable[[], Any]) -> dict[str, Any]:
    """Return what there is to say of states, nothing where a block keeps none."""
    return {"ssm": make()} if states.numel() else {}


@dataclass(frozen=True, slots=True)
class Kept:
    """A cache whose written blocks hold what they should, and whose others were not touched."""

    value: Tensor
    dtype: str
    magnitude: Tensor
    written: Tensor
    before: Tensor

    def check(self, got: Tensor) -> Finding:
        finding = Exact(self.before[~self.written]).check(got[~self.written])
        if finding.message:
            return replace(finding, message=f"other blocks were written: {finding.message}")
        rows = self.written
        return Close(self.value[rows], self.dtype, self.magnitude[rows]).check(got[rows])


def problem_of(
    setup: Setup,
    source: torch.Generator,
    state: tuple[int, ...],
    weights: Any,
    recurrence: Callable[[Any, Any], Recurrence],
) -> StateProblem:
    """Draw what a step takes over states of a shape."""
    spec, batch = setup.spec, setup.shape
    columns = max(-(-length // spec.block_size) for _, length in batch.requests)
    tokens = sum(count for count, _ in batch.requests)
    # More blocks than tokens, so that nobody takes one for the other.
    num_blocks = max(columns * len(batch.requests), tokens) + 2
    blocks = torch.randperm(num_blocks, generator=source)[: columns * len(batch.requests)]
    inputs = (spec.conv_width - 1, spec.conv_size)
    return StateProblem(
        spec,
        batch,
        normal((tokens, sum(spec.sections)), spec.dtype, source),
        [normal(inputs, spec.conv_dtype, source) for _ in batch.requests],
        [normal(state, _state_dtype(spec), source) for _ in batch.requests],
        blocks.view(len(batch.requests), columns).int(),
        num_blocks,
        weights,
        recurrence,
    )
