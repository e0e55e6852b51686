"""Cases of slot `gated_delta`: batches and caches as `hotshoe_conformance.cases.states` has them.

Expected values come from the recurrence in float64, token by token. Magnitudes are norms: what the
delta rule replaces is at most as long as what was there, so that errors add up and do not grow.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.slots import GatedDeltaSpec, GatedDeltaWeights, KVLayout
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.cases.states import (
    STEEPEST,
    StateProblem,
    bench_of,
    draw_requests,
    grid_of,
    problem_of,
)

SLOT = "gated_delta"
BASE = GatedDeltaSpec(4, 2, 16, 16, 4, "float32", "float32", "float32", 16, 1e-6)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"decay": "channel"},
    {"decay": "channel", "gate": "sigmoid", "num_key_heads": 4, "norm_eps": 1e-5},
    {"beta_scale": 2.0},
    {"decay_floor": -2.0},
    {"decay": "channel", "decay_floor": -5.0, "beta_scale": 2.0},
    {"num_key_heads": 1},
    {"num_heads": 6, "num_key_heads": 3},
    {"key_dim": 128, "value_dim": 64},
    {"key_dim": 24, "value_dim": 40},
    {"conv_width": 2},
    {"conv_dtype": "bfloat16"},
    {"state_dtype": "bfloat16"},
    {"checkpoints": "align"},
    {"checkpoints": "all"},
    {"checkpoints": "all", "block_size": 4, "decay": "channel"},
    {"checkpoints": "align", "block_size": 128},
)


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    keys = rng.choice((1, 2, 4))
    spec = GatedDeltaSpec(
        keys * rng.choice((1, 2)),
        keys,
        rng.choice((8, 16, 64, 128)),
        rng.choice((8, 16, 64, 128)),
        rng.choice((2, 4, 4)),
        "float32",
        "float32",
        "float32",
        rng.choice((4, 16, 32)),
        1e-6,
        rng.choice(("none", "align", "all")),
        rng.choice(("head", "channel")),
        rng.choice(("silu", "sigmoid")),
        rng.choice((1.0, 1.0, 2.0)),
        rng.choice((None, None, -5.0)),
    )
    return draw_requests(rng, spec)


class _Recurrence:
    """One sequence in float64; `sizes` are equal along the axis of keys."""

    def __init__(self, spec: GatedDeltaSpec, weights: GatedDeltaWeights) -> None:
        self._spec, self._weights = spec, weights
        self.inputs = torch.zeros(spec.conv_width - 1, spec.conv_size, dtype=torch.float64)
        shape = (spec.num_heads, spec.value_dim, spec.key_dim)
        self.state = torch.zeros(shape, dtype=torch.float64)
        self.sizes = self.state.clone()

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        self.inputs, self.state = inputs.double(), state.double()
        self.sizes = self.state.norm(dim=-1, keepdim=True).expand_as(self.state)

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        spec, weights = self._spec, self._weights
        new, z, beta, decay = row.split(spec.sections)
        window = torch.cat((self.inputs, new[None]))
        self.inputs = window[1:]
        terms = window * weights.conv.double().T
        (q, k, v), sizes = self._parts(F.silu(terms.sum(0))), self._parts(terms.abs().sum(0))
        (q, wide_q), (k, wide_k) = (
            _direction(part, STEEPEST * size) for part, size in zip((q, k), sizes, strict=False)
        )
        beta = spec.beta_scale * beta.sigmoid()[:, None]
        decay = (decay + weights.dt_bias.double()).view(spec.num_heads, 1, -1)
        rate, floor = weights.a.double()[:, None, None], spec.decay_floor
        kept = rate * F.softplus(decay) if floor is None else floor * torch.sigmoid(-rate * decay)
        kept = torch.exp(kept)
        self.state = self.state * kept
        before = self.state.norm(dim=-1)
        added = beta * (v - (self.state * k[:, None]).sum(-1))
        self.state = self.state + added[..., None] * k[:, None]
        size_added = beta * wide_k * (STEEPEST * sizes[2] + before)
        size = self.sizes[..., 0] * kept.amax(-1) + before + size_added
        self.sizes = size[..., None].expand_as(self.state)
        y = (self.state * q[:, None]).sum(-1)
        return self._gated(y, wide_q * size, z.view(spec.num_heads, -1))

    def _parts(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q and k [heads, key_dim], and v [heads, value_dim]."""
        spec = self._spec
        keys, each = spec.num_key_heads * spec.key_dim, spec.num_heads // spec.num_key_heads
        q, k, v = mixed.split([keys, keys, spec.inner_size])
        q, k = (part.view(spec.num_key_heads, -1).repeat_interleave(each, 0) for part in (q, k))
        return q, k, v.view(spec.num_heads, -1)

    def _gated(self, y: Tensor, size: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        spec = self._spec
        y, size = y * spec.key_dim**-0.5, size * spec.key_dim**-0.5
        total = y.square().sum(-1, keepdim=True)
        scale = torch.rsqrt(total / spec.value_dim + spec.norm_eps) * self._weights.norm.double()
        moved = (size * y.abs()).sum(-1, keepdim=True) / total.clamp(min=1e-12)
        gate = F.silu(z) if spec.gate == "silu" else z.sigmoid()
        size = (size + y.abs() * moved) * (scale * gate).abs()
        return (y * scale * gate).flatten(), size.flatten()


def _direction(part: Tensor, size: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors of length 1, and how many times longer the sums behind them were."""
    length = torch.sqrt(part.square().sum(-1, keepdim=True) + 1e-6)
    return part / length, (size.norm(dim=-1, keepdim=True) / length).clamp(min=1.0)


def _problem(setup: Setup, source: torch.Generator) -> StateProblem:
    spec = setup.spec
    weights = GatedDeltaWeights(
        normal((spec.conv_size, spec.conv_width), spec.dtype, source, spec.conv_width**-0.5),
        -torch.exp(normal((spec.num_heads,), "float32", source)),
        normal((spec.num_decays,), "float32", source),
        normal((spec.value_dim,), spec.dtype, source),
    )
    state = (spec.num_heads, spec.value_dim, spec.key_dim)
    return problem_of(setup, source, state, weights, _Recurrence)


QWEN = GatedDeltaSpec(32, 16, 128, 128, 4, "float32", "float32", "float32", 32, 1e-6)

SUITE = Suite(
    SLOT,
    lambda layouts: grid_of(BASE, VARIATIONS),
    _draw,
    _problem,
    lambda layouts: bench_of(QWEN),
)
