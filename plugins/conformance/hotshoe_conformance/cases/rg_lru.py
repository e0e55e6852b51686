"""Cases of slot `rg_lru`; batches and caches are those of `cases.states`.

Expected values come from the recurrence in float64, token by token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.slots import KVLayout, RgLruSpec, RgLruWeights
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.cases.states import (
    StateProblem,
    bench_of,
    draw_requests,
    grid_of,
    problem_of,
)

SLOT = "rg_lru"
BASE = RgLruSpec(48, 3, 4, "float32", "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"inner_size": 72, "num_heads": 1},
    {"num_heads": 6},
    {"conv_width": 2},
    {"conv_dtype": "bfloat16"},
    {"state_dtype": "bfloat16"},
    {"checkpoints": "align"},
    {"checkpoints": "all", "block_size": 4},
)
#: Steepest slope of the logistic function.
SLOPE = 0.25
#: 1 - a^2 is no less, in what errors are divided by.
LEAST = 1e-6


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    heads = rng.choice((1, 2, 3))
    spec = RgLruSpec(
        heads * rng.choice((8, 24)),
        heads,
        rng.choice((2, 4, 4)),
        "float32",
        "float32",
        "float32",
        rng.choice((4, 16, 32)),
        rng.choice(("none", "align", "all")),
    )
    return draw_requests(rng, spec)


class _Recurrence:
    """One sequence in float64, token by token; `sizes` are sums of magnitudes behind `state`."""

    def __init__(self, spec: RgLruSpec, weights: RgLruWeights) -> None:
        self._spec, self._weights, self._begins = spec, weights, True
        self.inputs = torch.zeros(spec.conv_width - 1, spec.inner_size, dtype=torch.float64)
        self.state = torch.zeros(1, spec.inner_size, 1, dtype=torch.float64)
        self.sizes = self.state.clone()

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        self.inputs, self.state, self.sizes = inputs.double(), state.double(), state.double().abs()
        self._begins = False

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        spec, weights = self._spec, self._weights
        new, behind = row.split(spec.sections)
        window = torch.cat((self.inputs, new[None]))
        self.inputs = window[1:]
        bias = weights.conv_bias.double()[None]
        terms = torch.cat((window * weights.conv.double().T, bias))
        x, size_x = terms.sum(0), terms.abs().sum(0)
        (opening, decay), (size_opening, size_decay) = self._gates(x, size_x)
        rate = weights.rate.double()
        a, moved = torch.exp(rate * decay), rate.abs() * size_decay
        square = a * a
        scale = torch.sqrt(1 - square)
        size_scale = scale + square * moved / scale.clamp(min=LEAST**0.5)
        if self._begins:
            scale, size_scale = torch.ones_like(scale), torch.ones_like(scale)
        added = scale * opening * x
        size_added = (
            scale * opening * size_x + scale * size_opening * x.abs() + size_scale * added.abs()
        )
        state, sizes = self.state[0, :, 0], self.sizes[0, :, 0]
        sizes = a * sizes + a * moved * state.abs() + size_added
        state = a * state + added
        self.state, self.sizes = state[None, :, None], sizes[None, :, None]
        self._begins = False
        gate = F.gelu(behind, approximate="tanh")
        return state * gate, sizes * gate.abs() + (state * behind).abs()

    def _gates(self, x: Tensor, size: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the gates of the input and of the decay, and their magnitudes."""
        spec, matrix = self._spec, self._weights.gates.double()
        bias = self._weights.gate_bias.double()

        def made(values: Tensor, matrix: Tensor) -> list[Tensor]:
            heads = values.view(spec.num_heads, 1, spec.head_dim)
            both = torch.bmm(heads, matrix)[:, 0].split(spec.head_dim, dim=1)
            return [part.flatten() for part in both]

        raw = [part + b for part, b in zip(made(x, matrix), bias, strict=True)]
        sizes = [s + b.abs() for s, b in zip(made(size, matrix.abs()), bias, strict=True)]
        gates = tuple(torch.sigmoid(part) for part in raw)
        return gates, tuple(g + SLOPE * s for g, s in zip(gates, sizes, strict=True))


def _problem(setup: Setup, source: torch.Generator) -> StateProblem:
    spec = setup.spec
    inner, size = spec.inner_size, spec.head_dim
    weights = RgLruWeights(
        normal((inner, spec.conv_width), spec.dtype, source, spec.conv_width**-0.5),
        normal((inner,), spec.dtype, source),
        normal((spec.num_heads, size, 2 * size), "float32", source, size**-0.5),
        normal((2, inner), "float32", source),
        -8 * F.softplus(normal((inner,), "float32", source) - 3),
    )
    return problem_of(setup, source, (1, inner, 1), weights, _Recurrence)


GRIFFIN = RgLruSpec(2560, 10, 4, "float32", "float32", "float32", 32)

SUITE = Suite(
    SLOT,
    lambda layouts: grid_of(BASE, VARIATIONS),
    _draw,
    _problem,
    lambda layouts: bench_of(GRIFFIN),
)
