"""Cases of slot `relative_attention`: as those of `attention`, with states of heads."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, RelativeAttentionSpec
from hotshoe.slots.reference.attention import attend
from hotshoe_conformance.cases import attention
from hotshoe_conformance.cases.attention import (
    BASE,
    LLAMA,
    MIXED,
    ROUNDED_OPERANDS,
    SHAPES,
    AttentionProblem,
)
from hotshoe_conformance.cases.base import DTYPES, Cost, Setup, Suite, in_dtype, normal
from hotshoe_conformance.cases.kv import give_scales
from hotshoe_conformance.place import Place, padded
from hotshoe_conformance.tolerance import Close, Expected

SLOT = "relative_attention"
PLAIN = RelativeAttentionSpec(BASE, 8, 20)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"states": 1},
    {"extent": 1},
    {"states": 16, "extent": 1024},
    {"attention": replace(BASE, window=20)},
    {"attention": replace(BASE, num_kv_heads=1, head_dim=80)},
)


def _grid(layouts: Sequence[KVLayout]) -> list[Setup]:
    varied = [replace(PLAIN, **changes) for changes in VARIATIONS]
    found = [Setup(in_dtype(spec, d), MIXED, True) for d in DTYPES for spec in varied]
    return [*found, *(Setup(in_dtype(PLAIN, d), shape) for d in DTYPES for shape in SHAPES)]


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    setup = attention._draw(rng, layouts)
    own = replace(setup.spec, softcap=None, sinks=False, alibi=None)
    spec = RelativeAttentionSpec(own, rng.randrange(1, 17), rng.randrange(1, 200))
    return Setup(spec, setup.shape)


@dataclass(slots=True)
class RelativeProblem:
    """The requests as those of `attention`, states [tokens, heads, states] and profiles."""

    spec: RelativeAttentionSpec
    inner: AttentionProblem
    states: Tensor
    profiles: Tensor

    def call(self, op: Any, place: Place) -> Mapping[str, Tensor]:
        return {"out": self.prepare(op, place)()}

    def prepare(self, op: Any, place: Place) -> Callable[[], Tensor]:
        inner = self.inner
        q = place(padded(torch.cat((inner.q, self.states), -1), inner.batch.gap))
        cache, step = inner._cache(op.layout, place), inner._metadata(place)
        give_scales(op, self.spec.attention, place)
        profiles = place(self.profiles)
        return lambda: op(q, cache, step, profiles)

    def expected(self) -> Mapping[str, Expected]:
        spec, inner = self.spec.attention, self.inner
        counts = [count for count, _ in inner.batch.requests]
        rows = []
        every = zip(
            inner.q.float().split(counts),
            self.states.float().split(counts),
            inner.keys,
            inner.values,
            strict=True,
        )
        for q, states, k, v in every:
            both = torch.cat((v.float(), v.float().abs()), dim=-1)
            logits = self._logits(states, len(k))
            rows.append(attend(spec, q, k.float(), both, None, logits=logits))
        value, magnitude = (part.flatten(1) for part in torch.cat(rows).chunk(2, dim=-1))
        if spec.dtype != "float32" or spec.kv_dtype != "float32":
            magnitude = ROUNDED_OPERANDS * magnitude
        return {"out": Close(value, spec.dtype, magnitude)}

    def _logits(self, states: Tensor, length: int) -> Tensor:
        """Add up each query's logits, distance by distance."""
        count, heads, _ = states.shape
        logits = torch.zeros(heads, count, length)
        for row in range(count):
            at = length - count + row
            near = min(self.spec.extent, at + 1)
            own = states[row] @ self.profiles[:, :near]
            logits[:, row, at - near + 1 : at + 1] = own.flip(-1)
        return logits

    def alone(self) -> tuple[RelativeProblem, slice]:
        inner, rows = self.inner.alone()
        return replace(self, inner=inner, states=self.states[rows]), rows

    def cost(self) -> Cost:
        return self.inner.cost()


def _problem(setup: Setup, source: torch.Generator) -> RelativeProblem:
    spec = setup.spec
    inner = attention._problem(Setup(spec.attention, setup.shape), source)
    shape = (*inner.q.shape[:2], spec.states)
    profiles = torch.randn(spec.states, spec.extent, generator=source) * spec.states**-0.5
    return RelativeProblem(spec, inner, normal(shape, spec.dtype, source), profiles)


def _bench(layouts: Sequence[KVLayout]) -> list[Setup]:
    spec = RelativeAttentionSpec(LLAMA, 16, 1024)
    setups = attention._bench(layouts)
    return [Setup(in_dtype(spec, setup.spec.dtype), setup.shape) for setup in setups]


SUITE = Suite(SLOT, _grid, _draw, _problem, _bench)
