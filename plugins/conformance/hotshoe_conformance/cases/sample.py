"""Cases of slot `sample`: exact tokens, save where a threshold lies within rounding."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, SampleSpec
from hotshoe_conformance.cases.base import FAR, Cost, Setup, Suite, compared, reference
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Exact, Expected, Tokens


@dataclass(frozen=True, slots=True)
class Rows:
    """What the rows ask for; "mixed" gives each row its own choice, greedy ones among them.

    `defects` puts NaN, infinities and ties into the logits, and `before` greedy rows that are not
    compared come first.
    """

    count: int
    kind: str = "mixed"
    defects: bool = False
    before: int = 0


SLOT = "sample"
KINDS = ("greedy", "random", "top_k", "top_p", "min_p", "mixed")
#: Thresholds and random numbers may be off by this much through the order of sums.
MARGIN = 2e-6


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    kinds = [Setup(SampleSpec(300), Rows(9, kind), True) for kind in KINDS]
    defects = [Setup(SampleSpec(50), Rows(12, kind, True), True) for kind in KINDS]
    sizes = [
        Setup(SampleSpec(size), Rows(5), size < 40000) for size in (1, 2, 17, 1000, 32000, 151936)
    ]
    counts = [Setup(SampleSpec(100), Rows(count), True) for count in (1, 64, 300)]
    shape = Rows(10, before=-(-FAR // 151936))
    far = Setup(SampleSpec(151936), shape, bytes=4 * FAR + (1 << 30))
    return [*kinds, *defects, *sizes, *counts, far]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    shape = Rows(rng.randrange(1, 40), rng.choice(KINDS), rng.random() < 0.2)
    return Setup(SampleSpec(rng.randrange(1, 5000)), shape)


@dataclass(slots=True)
class SampleProblem:
    """The operation's arguments in order."""

    spec: SampleSpec
    arguments: tuple[Tensor, ...]
    before: int

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        logits, *settings = self.arguments
        logits = place.behind(logits, self.before)
        none = [tensor.new_zeros(self.before) for tensor in settings]
        settings = [place(torch.cat(pair)) for pair in zip(none, settings, strict=True)]
        return compared(self.before, {"tokens": op(logits, *settings), "logits": logits})

    def expected(self) -> Mapping[str, Expected]:
        op = reference(SLOT, self.spec)

        def acceptable(row: int) -> set[int]:
            alone = [tensor[row : row + 1] for tensor in self.arguments]
            found = set()
            for steps in product((-1, 0, 1), repeat=3):
                nudged = list(alone)
                for place, step in zip((3, 4, 5), steps, strict=True):
                    value = nudged[place]
                    wide = value.double() * (1 + step * MARGIN)
                    if place == 5:
                        wide = value.double() + step * MARGIN
                    # A setting that is switched off stays off.
                    off = (place == 3 and value == 1) or (place == 4 and value == 0)
                    nudged[place] = value if off else wide.clamp(0, 1).to(value.dtype)
                found.add(int(op(*nudged)[0]))
            return found

        return {
            "tokens": Tokens(op(*self.arguments), acceptable),
            "logits": Exact(self.arguments[0]),
        }

    def alone(self) -> tuple[SampleProblem, slice]:
        at = slice(len(self.arguments[0]) // 2, len(self.arguments[0]) // 2 + 1)
        arguments = tuple(tensor[at] for tensor in self.arguments)
        return replace(self, arguments=arguments, before=0), at

    def cost(self) -> Cost:
        return Cost(self.arguments[0].nbytes, 4 * self.arguments[0].numel())

    def prepare(self, op: Any, place: Place) -> Callable[[], object]:
        arguments = [place(tensor) for tensor in self.arguments]
        return lambda: op(*arguments)


def _problem(setup: Setup, source: torch.Generator) -> SampleProblem:
    rows, vocab = setup.shape, setup.spec.vocab_size
    count = rows.count

    def uniform() -> Tensor:
        return torch.rand(count, generator=source)

    logits = torch.randn(count, vocab, generator=source) * 3
    if rows.defects:
        _spoil(logits)
    pick = (torch.arange(count) % 5) if rows.kind == "mixed" else None

    def used(kind: str, number: int) -> Tensor:
        if pick is not None:
            return pick == number
        return torch.full((count,), rows.kind == kind)

    greedy = used("greedy", 0)
    temperature = torch.where(greedy, 0.0, 0.3 + 1.5 * uniform())
    top_k = torch.where(
        used("top_k", 2), torch.randint(1, vocab + 2, (count,), generator=source), 0
    )
    top_p = torch.where(used("top_p", 3), 0.05 + 0.9 * uniform(), 1.0)
    min_p = torch.where(used("min_p", 4), 0.3 * uniform(), 0.0)
    numbers = torch.rand(count, generator=source, dtype=torch.float64)
    arguments = (logits, temperature, top_k.int(), top_p, min_p, numbers)
    return SampleProblem(setup.spec, arguments, rows.before)


def _spoil(logits: Tensor) -> None:
    """Give every row of seven another defect; the first is left as it is."""
    middle = logits.shape[1] // 2
    logits[1::7, middle] = float("nan")
    logits[2::7] = float("-inf")
    logits[3::7, middle] = float("inf")
    logits[4::7, ::2] = float("-inf")
    logits[5::7] = logits[5::7].round()
    logits[6::7, :] = 1.5


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(SampleSpec(151936), Rows(n, k)) for k in ("greedy", "top_p") for n in (1, 32)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
