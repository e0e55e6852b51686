"""Cases of slot `graph`: what is replayed equals what is run, for every content of the inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import GraphSpec, KVLayout
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
        Setup(GraphSpec(8), Replays(sizes), True) for sizes in ((1,), (8,), (8, 4, 1), (1, 2, 8, 2))
    ]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    most = rng.randrange(1, 40)
    sizes = tuple(rng.randrange(1, most + 1) for _ in range(rng.randrange(1, 5)))
    return Setup(GraphSpec(most), Replays(sizes, 8 * rng.randrange(1, 9)))


@dataclass(slots=True)
class GraphProblem:
    """A step of three operations over a part of one persistent input."""

    spec: GraphSpec
    sizes: tuple[int, ...]
    contents: Tensor
    weight: Tensor

    @staticmethod
    def _step(x: Tensor, weight: Tensor) -> Tensor:
        return (x @ weight).tanh() + x

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        weight = place(self.weight)
        x = place.empty(self.spec.max_num_seqs, self.weight.shape[0], dtype=torch.float32)
        x.zero_()

        def recorded(size: int) -> Callable[[], Tensor]:
            return op.record(lambda: self._step(x[:size], weight))

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
            value = self._step(content[:size].double(), self.weight.double())
            magnitude = content[:size].abs() @ self.weight.abs() + 1
            found[f"replay {turn}, size {size}"] = Close(value, "float32", magnitude)
        return found


def _problem(setup: Setup, source: torch.Generator) -> GraphProblem:
    spec, shape = setup.spec, setup.shape
    width = shape.width
    contents = normal((2 * len(shape.sizes), spec.max_num_seqs, width), "float32", source)
    weight = normal((width, width), "float32", source, width**-0.5)
    return GraphProblem(spec, shape.sizes, contents, weight)


SUITE = Suite(SLOT, _grid, _draw, _problem)
