"""Cases of slot `state_space`: batches and caches as `hotshoe_conformance.cases.states` has them.

Expected values come from the recurrence in float64, token by token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.slots import KVLayout, StateSpaceSpec, StateSpaceWeights
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.cases.states import (
    STEEPEST,
    StateProblem,
    bench_of,
    draw_requests,
    grid_of,
    problem_of,
)

SLOT = "state_space"
BASE = StateSpaceSpec(4, 16, 16, 1, 4, "float32", "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"num_groups": 2},
    {"num_heads": 6, "num_groups": 3},
    {"head_dim": 64, "state_size": 128},
    {"state_size": 24},
    {"conv_width": 2},
    {"conv_width": 6},
    {"conv_dtype": "bfloat16"},
    {"state_dtype": "bfloat16"},
    {"checkpoints": "align"},
    {"checkpoints": "all"},
    {"checkpoints": "all", "block_size": 4},
    {"checkpoints": "align", "block_size": 128},
    {"dt_limits": (0.1, 0.7)},
    {"norm": "after", "norm_eps": 1e-5},
    {"norm": "before", "norm_eps": 1e-5},
    {"norm": "after", "norm_eps": 1e-5, "norm_groups": 2, "num_groups": 2},
    {"norm": "before", "norm_eps": 1e-5, "norm_groups": 2},
    {"activation": "identity", "head_dim": 17, "num_groups": 4},
    {"activation": "identity", "norm": "after", "norm_eps": 1e-5},
)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "identity": torch.positive}


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    groups, norm = rng.choice((1, 1, 2)), rng.choice(("none", "after", "before"))
    spec = StateSpaceSpec(
        groups * rng.randrange(1, 5),
        rng.choice((8, 16, 64)),
        rng.choice((8, 16, 128)),
        groups,
        rng.choice((2, 4, 4)),
        "float32",
        "float32",
        "float32",
        rng.choice((4, 16, 32)),
        rng.choice(("none", "align", "all")),
        norm=norm,
        norm_eps=1e-5 if norm != "none" else 0.0,
        norm_groups=groups if norm != "none" else 1,
    )
    return draw_requests(rng, spec)


class _Recurrence:
    """One sequence in float64, token by token; `sizes` are sums of magnitudes behind `state`."""

    def __init__(self, spec: StateSpaceSpec, weights: StateSpaceWeights) -> None:
        self._spec, self._weights = spec, weights
        self.inputs = torch.zeros(spec.conv_width - 1, spec.conv_size, dtype=torch.float64)
        shape = (spec.num_heads, spec.head_dim, spec.state_size)
        self.state = torch.zeros(shape, dtype=torch.float64)
        self.sizes = self.state.clone()

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        self.inputs, self.state, self.sizes = inputs.double(), state.double(), state.double().abs()

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        spec, weights = self._spec, self._weights
        z, new, dt = row.split(spec.sections)
        window = torch.cat((self.inputs, new[None]))
        self.inputs = window[1:]
        terms = window * weights.conv.double().T
        if weights.conv_bias is not None:
            terms = torch.cat((terms, weights.conv_bias.double()[None]))
        x, b, c = self._parts(ACTIVATIONS[spec.activation](terms.sum(0)))
        size_x, size_b, size_c = self._parts(STEEPEST * terms.abs().sum(0))
        dt = F.softplus(dt + weights.dt_bias.double()).clamp(*spec.dt_limits)
        decay = torch.exp(dt * weights.a.double())[:, None, None]
        added = (dt[:, None] * x)[:, :, None] * b[:, None, :]
        self.state = self.state * decay + added
        self.sizes = self.sizes * decay + (dt[:, None] * size_x)[:, :, None] * size_b[:, None, :]
        d = weights.d.double()[:, None]
        y = ((self.state * c[:, None, :]).sum(-1) + d * x).flatten()
        size = ((self.sizes * size_c[:, None, :]).sum(-1) + d.abs() * size_x).flatten()
        return self._gated(y, size, ACTIVATIONS[spec.activation](z))

    def _parts(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return x [heads, head_dim], and B and C [heads, state_size]."""
        spec = self._spec
        x, b, c = mixed.split([spec.inner_size, spec.group_size, spec.group_size])
        each = spec.num_heads // spec.num_groups
        b, c = (g.view(spec.num_groups, -1).repeat_interleave(each, 0) for g in (b, c))
        return x.view(spec.num_heads, spec.head_dim), b, c

    def _gated(self, y: Tensor, size: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        spec, norm = self._spec, self._weights.norm
        if norm is None:
            return y * gate, size * gate.abs()
        if spec.norm == "after":
            y, size = y * gate, size * gate.abs()
        groups = y.view(spec.norm_groups, -1)
        scale = torch.rsqrt(groups.square().mean(-1, keepdim=True) + spec.norm_eps)
        factor = scale.expand_as(groups).flatten() * norm.double()
        y, size = y * factor, size * factor.abs()
        return (y * gate, size * gate.abs()) if spec.norm == "before" else (y, size)


def _problem(setup: Setup, source: torch.Generator) -> StateProblem:
    spec = setup.spec
    heads = (spec.num_heads,)
    weights = StateSpaceWeights(
        normal((spec.conv_size, spec.conv_width), spec.dtype, source, spec.conv_width**-0.5),
        normal((spec.conv_size,), spec.dtype, source),
        -torch.exp(normal(heads, "float32", source)),
        normal(heads, "float32", source),
        normal(heads, "float32", source),
        None if spec.norm == "none" else normal((spec.inner_size,), spec.dtype, source),
    )
    state = (spec.num_heads, spec.head_dim, spec.state_size)
    return problem_of(setup, source, state, weights, _Recurrence)


FALCON = StateSpaceSpec(24, 64, 128, 1, 4, "float32", "float32", "float32", 32)

SUITE = Suite(
    SLOT,
    lambda layouts: grid_of(BASE, VARIATIONS),
    _draw,
    _problem,
    lambda layouts: bench_of(FALCON),
)
