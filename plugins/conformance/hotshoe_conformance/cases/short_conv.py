"""Cases of slot `short_conv`; batches and caches are those of `cases.states`.

Expected values come from the convolution in float64, token by token.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import KVLayout, ShortConvSpec, ShortConvWeights
from hotshoe_conformance.cases.base import Setup, Suite, normal
from hotshoe_conformance.cases.states import (
    StateProblem,
    bench_of,
    draw_requests,
    grid_of,
    problem_of,
)

SLOT = "short_conv"
BASE = ShortConvSpec(48, 3, "float32", "float32", 16)
VARIATIONS: tuple[dict[str, Any], ...] = (
    {"inner_size": 72},
    {"conv_width": 2},
    {"conv_width": 7},
    {"conv_dtype": "bfloat16"},
    {"checkpoints": "align"},
    {"checkpoints": "all", "block_size": 4},
)


def _draw(rng: random.Random, layouts: Sequence[KVLayout]) -> Setup:
    spec = ShortConvSpec(
        rng.choice((8, 24, 64)),
        rng.choice((2, 3, 3, 7)),
        "float32",
        "float32",
        rng.choice((4, 16, 32)),
        rng.choice(("none", "align", "all")),
    )
    return draw_requests(rng, spec)


class _Convolution:
    """One sequence in float64, token by token; it has no state but its last inputs."""

    def __init__(self, spec: ShortConvSpec, weights: ShortConvWeights) -> None:
        self._spec, self._weights = spec, weights
        self.inputs = torch.zeros(spec.conv_width - 1, spec.inner_size, dtype=torch.float64)
        self.state = self.sizes = torch.zeros(0, dtype=torch.float64)

    def carry_on(self, inputs: Tensor, state: Tensor) -> None:
        self.inputs = inputs.double()

    def __call__(self, row: Tensor) -> tuple[Tensor, Tensor]:
        weights = self._weights
        before, behind, x = row.split(self._spec.sections)
        window = torch.cat((self.inputs, (before * x)[None]))
        self.inputs = window[1:]
        terms = window * weights.conv.double().T
        if weights.conv_bias is not None:
            terms = torch.cat((terms, weights.conv_bias.double()[None]))
        return behind * terms.sum(0), behind.abs() * terms.abs().sum(0)


def _problem(setup: Setup, source: torch.Generator) -> StateProblem:
    spec = setup.spec
    shape = (spec.inner_size, spec.conv_width)
    weights = ShortConvWeights(
        normal(shape, spec.dtype, source, spec.conv_width**-0.5),
        normal((spec.inner_size,), spec.dtype, source),
    )
    return problem_of(setup, source, (0,), weights, _Convolution)


LFM2 = ShortConvSpec(2048, 3, "float32", "float32", 32)

SUITE = Suite(
    SLOT,
    lambda layouts: grid_of(BASE, VARIATIONS),
    _draw,
    _problem,
    lambda layouts: bench_of(LFM2),
)
