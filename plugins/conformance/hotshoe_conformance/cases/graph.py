"""Cases of slot `graph`: what is replayed equals what is run, for every content of the inputs, and
for every length of what is called between recorded pieces."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import Between, GraphSpec, KVLayout
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import Close, Expected


@dataclass(frozen=True, slots=True)
class Replays:
    """Batch sizes that are recorded, in the order in which they are then replayed twice each."""

    sizes: tuple[int, ...]
    width: int = 32


SLOT = "graph"


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [
        Setup(GraphSpec(8, pieces=pieces), Replays(sizes), True)
        for pieces in (False, True)
        for sizes in ((1,), (8,), (8, 4, 1), (1, 2, 8, 2))
    ]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    most = rng.randrange(1, 40)
    sizes = tuple(rng.randrange(1, most + 1) for _ in range(rng.randrange(1, 5)))
    replays = Replays(sizes, 8 * rng.randrange(1, 9))
    return Setup(GraphSpec(most, pieces=rng.random() < 0.5), replays)


def _step(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).tanh() + x


@dataclass(slots=True)
class GraphProblem:
    """A step of three operations over a part of one persistent input."""

    spec: GraphSpec
    sizes: tuple[int, ...]
    contents: Tensor
    weight: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        weight = place(self.weight)
        x = place.empty(self.spec.max_num_seqs, self.weight.shape[0], dtype=torch.float32)
        x.zero_()

        def recorded(size: int) -> Callable[[], Tensor]:
            return op.record(lambda: _step(x[:size], weight))

        replays = {size: recorded(size) for size in self.sizes}
        outputs = {}
        for turn, content in enumerate(self.contents):
            size = self.sizes[turn % len(self.sizes)]
            x.copy_(place(content))
            outputs[f"replay {turn}, size {size}"] = replays[size]().clone()
        return outputs

    def expected(self) -> Mapping[str, Expected]:
        found: dict[str, Expected] = {}
        for turn, content in enumerate(self.contents):
            size = self.sizes[turn % len(self.sizes)]
            value = _step(content[:size].double(), self.weight.double())
            magnitude = content[:size].abs() @ self.weight.abs() + 1
            found[f"replay {turn}, size {size}"] = Close(value, "float32", magnitude)
        return found


@dataclass(slots=True)
class PiecesProblem:
    """The same step twice, and after each time something that the host calls, which reads and
    writes fewer rows or more each time. Whole recordings lie between those in pieces."""

    spec: GraphSpec
    sizes: tuple[int, ...]
    contents: Tensor
    weight: Tensor

    @staticmethod
    def _rows(turn: int, size: int) -> int:
        return 1 + (turn * 5 + 2) % size

    @staticmethod
    def _mix(rows: Tensor) -> Tensor:
        return rows + rows.mean(0)

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        weight, spec = place(self.weight), self.spec
        x = place.empty(spec.max_num_seqs, self.weight.shape[0], dtype=torch.float32)
        shared = place.empty(*x.shape, dtype=torch.float32)
        num_rows = [1]
        x.zero_()

        def mix() -> None:
            rows = shared[: num_rows[0]]
            rows.copy_(self._mix(rows))

        def step(size: int, between: Between) -> Tensor:
            y = x[:size]
            for _ in range(2):
                shared[:size].copy_(_step(y, weight))
                between(mix)
                y = shared[:size] + x[:size]
            return y

        def recorded(size: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
            whole = op.record(lambda: _step(x[:size], weight))
            return whole, op.record_pieces(lambda between: step(size, between))

        replays = {size: recorded(size) for size in self.sizes}
        outputs = {}
        for turn, content in enumerate(self.contents):
            size = self.sizes[turn % len(self.sizes)]
            x.copy_(place(content))
            num_rows[0] = self._rows(turn, size)
            for name, replay in zip(("whole", "pieces"), replays[size], strict=True):
                outputs[f"{name} {turn}, size {size}"] = replay().clone()
        return outputs

    def expected(self) -> Mapping[str, Expected]:
        found: dict[str, Expected] = {}
        for turn, content in enumerate(self.contents):
            size = self.sizes[turn % len(self.sizes)]
            x, weight = content[:size].double(), self.weight.double()
            magnitude = x.abs() @ weight.abs() + 1
            found[f"whole {turn}, size {size}"] = Close(_step(x, weight), "float32", magnitude)
            y, num_rows = x, self._rows(turn, size)
            for _ in range(2):
                y = _step(y, weight)
                y = torch.cat([self._mix(y[:num_rows]), y[num_rows:]]) + x
            # What the first time got wrong is added up again by the second.
            magnitude = 4 * magnitude.amax() * (weight.abs().sum(0).amax() + 1)
            found[f"pieces {turn}, size {size}"] = Close(y, "float32", magnitude)
        return found


def _problem(setup: Setup, source: torch.Generator) -> GraphProblem | PiecesProblem:
    spec, shape = setup.spec, setup.shape
    width = shape.width
    contents = normal((2 * len(shape.sizes), spec.max_num_seqs, width), "float32", source)
    weight = normal((width, width), "float32", source, width**-0.5)
    kind = PiecesProblem if spec.pieces else GraphProblem
    return kind(spec, shape.sizes, contents, weight)


SUITE = Suite(SLOT, _grid, _draw, _problem)
