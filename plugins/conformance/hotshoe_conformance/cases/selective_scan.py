"""Cases of slot `selective_scan`; batches and caches are those of `cases.states`.

Expected values come from the recurrence in float64, token by token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.slots import KVLayout, SelectiveScanSpec, SelectiveScanWeights
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.cases.states import (
    STEEPEST,
    StateProblem,
    bench_of,
    draw_requests,
    grid_of,
    problem_of,
)

SLOT = "selective_scan"
BASE = SelectiveScanSpec(48, 16, 5, 4, "float32", "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"inner_size": 72, "state_size": 8},
    {"dt_rank": 1},
    {"conv_width": 2},
    {"conv_dtype": "bfloat16"},
    {"state_dtype": "bfloat16"},
    {"checkpoints": "align"},
    {"checkpoints": "all", "block_size": 4},
    {"norm_eps": 1e-5},
)


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    spec = SelectiveScanSpec(
        rng.choice((8, 24, 64)),
        rng.choice((8, 16)),
        rng.randrange(1, 9),
        rng.choice((2, 4, 4)),
        "float32",
        "float32",
        "float32",
        rng.choice((4, 16, 32)),
        rng.choice(("none", "align", "all")),
        rng.choice((None, 1e-5)),
    )
    return draw_requests(rng, spec)


class _Recurrence:
    """One sequence in float64, token by token; `sizes` are sums of magnitudes behind `state`."""

    def __init__(self, spec: SelectiveScanSpec, weights: SelectiveScanWeights) -> None:
        self._spec, self._weights = spec, weights
        self.inputs = torch.zeros(spec.conv_width - 1, spec.inner_size, dtype=torch.float64)
        self.state = torch.zeros(1, spec.inner_size, spec.state_size, dtype=torch.float64)
        self.sizes = self.state.clone()

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        self.inputs, self.state, self.sizes = inputs.double(), state.double(), state.double().abs()

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        spec, weights = self._spec, self._weights
        new, z = row.split(spec.sections)
        window = torch.cat((self.inputs, new[None]))
        self.inputs = window[1:]
        terms = window * weights.conv.double().T
        if weights.conv_bias is not None:
            terms = torch.cat((terms, weights.conv_bias.double()[None]))
        x, size_x = F.silu(terms.sum(0)), STEEPEST * terms.abs().sum(0)
        (low, b, c), (size_low, size_b, size_c) = self._made(x, size_x)
        matrix, bias = weights.dt.double(), weights.dt_bias.double()
        # The slope of softplus is 1 at most.
        dt, size_dt = F.softplus(matrix @ low + bias), matrix.abs() @ size_low + bias.abs()
        size_dt = size_dt + dt
        rate = weights.a.double()
        decay = torch.exp(dt[:, None] * rate)
        moved = self.state.abs() * decay * rate.abs() * size_dt[:, None]
        self.state = self.state * decay + (dt * x)[:, None] * b
        self.sizes = self.sizes * decay + moved + (size_dt * size_x)[:, None] * size_b
        d, gate = weights.d.double(), F.silu(z)
        y = ((self.state[0] * c).sum(-1) + d * x) * gate
        return y, ((self.sizes[0] * size_c).sum(-1) + d.abs() * size_x) * gate.abs()

    def _made(self, x: Tensor, size: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the numbers of the steps of time, B and C, and their magnitudes."""
        spec, matrix = self._spec, self._weights.project.double()
        made, sizes = (matrix @ x).split(spec.made), (matrix.abs() @ size).split(spec.made)
        if spec.norm_eps is None:
            return made, sizes
        norm = self._weights.norm
        factors = torch.ones(sum(spec.made)).double() if norm is None else norm.double()
        own = list(zip(made, sizes, factors.split(spec.made), strict=True))
        scales = [torch.rsqrt(part.square().mean() + spec.norm_eps) for part in made]
        normed = [scale * part * own_f for scale, (part, _, own_f) in zip(scales, own, strict=True)]
        # What the scale takes of the errors of all comes on top of a part's own.
        sized = [
            scale * own_f.abs() * (each + part.abs() * scale * each.norm())
            for scale, (part, each, own_f) in zip(scales, own, strict=True)
        ]
        return tuple(normed), tuple(sized)


def _problem(setup: Setup, source: torch.Generator) -> StateProblem:
    spec = setup.spec
    inner = spec.inner_size
    weights = SelectiveScanWeights(
        normal((inner, spec.conv_width), spec.dtype, source, spec.conv_width**-0.5),
        normal((inner,), spec.dtype, source),
        normal((sum(spec.made), inner), spec.dtype, source, inner**-0.5),
        normal((inner, spec.dt_rank), spec.dtype, source, spec.dt_rank**-0.5),
        normal((inner,), "float32", source),
        -torch.exp(normal((inner, spec.state_size), "float32", source)),
        normal((inner,), "float32", source),
        None if spec.norm_eps is None else normal((sum(spec.made),), spec.dtype, source),
    )
    state = (1, inner, spec.state_size)
    return problem_of(setup, source, state, weights, _Recurrence)


MAMBA = SelectiveScanSpec(1536, 16, 48, 4, "float32", "float32", "float32", 32)

SUITE = Suite(
    SLOT,
    lambda layouts: grid_of(BASE, VARIATIONS),
    _draw,
    _problem,
    lambda layouts: bench_of(MAMBA),
)
