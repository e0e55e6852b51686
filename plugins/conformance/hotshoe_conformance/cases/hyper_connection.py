"""Cases of slot `hyper_connection`: streams behind a block, what the next one takes, its gates.

What must come out is computed in float64. Logits follow from streams as they are rounded, so in
16 bits the numbers are multiples of powers of two whose sums no type rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import HyperConnectionSpec, KVLayout
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal, vary
from hotshoe_conformance.place import Place
from hotshoe_conformance.tolerance import TOLERANCES, Close, Expected

SLOT = "hyper_connection"
BASE = HyperConnectionSpec(4, 72, 3, 1e-6, 1e-6, "float32")
#: Between blocks of the smaller DeepSeek V4.
PUBLISHED = HyperConnectionSpec(4, 4096, 20, 1e-6, 1e-6, "bfloat16")


@dataclass(frozen=True, slots=True)
class Streams:
    """Tokens; without a block there is one tensor, which all streams show."""

    count: int
    block: bool = True


VARIATIONS: tuple[dict[str, Any], ...] = (
    {"ends": True},
    {"count": 1},
    {"count": 2},
    {"count": 3},
    {"hidden_size": 1},
    {"hidden_size": 512},
    {"hidden_size": 1030},
    {"iterations": 1},
    {"iterations": 20},
    {"eps": 0.1},
    {"norm_eps": 0.5},
    {"magnitude": 3.0},
    {"mixes": False, "eps": 0.1},
    {"mixes": False, "ends": True},
)
SHAPES = (Streams(0), Streams(1), Streams(1, False), Streams(17, False), Streams(300))


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    specs = [Setup(spec, Streams(5), True) for spec in vary(BASE, VARIATIONS)]
    shapes = [Setup(in_dtype(BASE, d), s, s.count < 100) for d in DTYPES for s in SHAPES]
    return [*specs, *shapes, Setup(PUBLISHED, Streams(3)), Setup(PUBLISHED, Streams(600))]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    sizes = (rng.randrange(1, 6), rng.randrange(1, 300), rng.randrange(1, 9))
    spec = HyperConnectionSpec(*sizes, 1e-6, 1e-6, rng.choice(DTYPES), rng.random() < 0.3)
    return Setup(spec, Streams(rng.randrange(1, 40), rng.random() < 0.7))


@dataclass(slots=True)
class HyperProblem:
    """One connection; `block` is what a block put out, and its gates."""

    spec: HyperConnectionSpec
    streams: Tensor
    block: tuple[Tensor, Tensor] | None
    fn: Tensor
    base: Tensor
    scale: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        streams, taken, gates = self.prepare(op, place)()
        return {"streams": streams, "taken": taken, "gates": gates}

    def prepare(self, op: Any, place: Place) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
        streams = place(self.streams)
        block = None if self.block is None else (place(self.block[0]), place(self.block[1]))
        weights = place(self.fn), place(self.base), place(self.scale)
        return lambda: op(streams, block, *weights)

    def expected(self) -> Mapping[str, Expected]:
        spec, count = self.spec, self.spec.count
        streams, added = self._joined()
        logits, off = self._logits(streams)
        factors = torch.sigmoid(logits[:, :count]) + spec.eps
        taken = torch.einsum("nc,ncs->ns", factors, streams)
        size = torch.einsum("nc,ncs->ns", factors, added)  # streams are off by their own sums
        slack = torch.einsum("nc,ncs->ns", off[:, :count], streams.abs())
        gates, own = self._gates(logits, off)
        return {
            "streams": Close(streams, spec.dtype, added),
            "taken": Close(taken, spec.dtype, size, slack),
            "gates": Close(gates, "float32", slack=own),
        }

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Return the streams behind the block, and how much was added up for them."""
        streams, count = self.streams.double(), self.spec.count
        if self.block is None:
            return streams, streams.abs()
        out, gates = (part.double() for part in self.block)
        post, mix = gates[:, :count, None], torch.eye(count, dtype=torch.float64)
        if self.spec.mixes:
            mix = gates[:, count:].view(-1, count, count).mT
        parts = (mix @ streams, mix @ streams.abs())
        return parts[0] + post * out[:, None], parts[1] + post * out[:, None].abs()

    def _logits(self, streams: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [n, outputs], and by how much they may be off."""
        spec, flat = self.spec, streams.flatten(1)
        inverse = (flat.square().mean(1, keepdim=True) + spec.norm_eps).rsqrt()
        of = torch.tensor([0] * spec.count + [1] * spec.count + [2] * spec.count**2)
        factor = inverse * self.scale.double()[of[: spec.outputs]]
        logits = flat @ self.fn.double().T * factor + self.base.double()
        size = flat.abs() @ self.fn.double().abs().T * factor.abs() + self.base.double().abs()
        return logits, 2 * TOLERANCES["float32"].accumulation * size

    def _gates(self, logits: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
        """Return gates [n, spec.gates], and by how much they may be off for their logits."""
        spec, count = self.spec, self.spec.count
        if spec.ends:
            return logits[:, :0], off[:, :0]
        post = spec.magnitude * torch.sigmoid(logits[:, count : 2 * count])
        if not spec.mixes:
            return post + spec.eps, spec.magnitude * off[:, count : 2 * count]
        made = logits[:, 2 * count :].view(-1, count, count).softmax(2) + spec.eps
        for at in range(spec.iterations):
            if at:
                made = made / (made.sum(2, keepdim=True) + spec.eps)
            made = made / (made.sum(1, keepdim=True) + spec.eps)
        mix = made.flatten(1)
        # Logits that are off by so much move shares by twice the factor, both ways.
        share = 4 * off[:, 2 * count :].amax(1, keepdim=True) * mix if len(off) else mix
        own = spec.magnitude / 2 * off[:, count : 2 * count]
        return torch.cat((post, mix), 1), torch.cat((own, share), 1)

    def cost(self) -> Cost:
        numbers, outputs = self.streams.numel(), self.spec.outputs
        size = self.streams.element_size()
        return Cost(3 * numbers * size + self.fn.nbytes, 2 * numbers * outputs)


def _problem(setup: Setup, source: torch.Generator) -> HyperProblem:
    spec, shape = setup.spec, setup.shape
    n, count, size = shape.count, spec.count, spec.hidden_size
    exact = spec.dtype != "float32"

    def drawn(*sizes: int) -> Tensor:
        if not exact:
            return normal(sizes, "float32", source)
        halves = torch.randint(-3, 4, sizes, generator=source) / 2
        return halves.to(getattr(torch, spec.dtype))

    def shares(*sizes: int) -> Tensor:
        if not exact:
            return torch.rand(sizes, generator=source)
        return torch.randint(0, 3, sizes, generator=source) / 2

    streams = drawn(n, count, size) if shape.block else drawn(n, 1, size).expand(n, count, size)
    block = (drawn(n, size), shares(n, spec.joining)) if shape.block else None
    fn = normal((spec.outputs, count * size), "float32", source, (count * size) ** -0.5)
    rest = (normal((many,), "float32", source) for many in (spec.outputs, spec.scales))
    return HyperProblem(spec, streams, block, fn, *rest)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    return [Setup(PUBLISHED, Streams(count)) for count in (1, 64, 4096)]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
