"""Candidates for `--batch-invariant`: what a row becomes does not depend on the rows beside it.

Libraries choose their algorithm by the number of rows, and so may add in another order. Here every
row goes through a tile of one size, and a request's attention through one program. Slower, so that
without the flag others are preferred.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionSpec, LinearSpec, MoeSpec, Quantized, Verdict, accept
from hotshoe_triton import attention as paged
from hotshoe_triton import linear as streaming
from hotshoe_triton import moe as mixture
from hotshoe_triton.tuning import BUCKETS, LinearConfig, itemsize_of

SCORE = 20
#: Rows of a tile; every batch is padded to a multiple.
ROWS = BUCKETS[-1]


def attention(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for any batch."""
    return _last(paged.supports(spec, facts), "one program for each request")


def linear(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for any batch."""
    return _last(streaming.supports(spec, facts), f"tiles of {ROWS} rows")


def moe(spec: MoeSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for any batch."""
    return _last(mixture.supports(spec, facts), "tiles of one size for any number of tokens")


def _last(verdict: Verdict, reason: str) -> Verdict:
    return accept(SCORE, reason) if verdict.accepted else verdict


class Linear(streaming.Linear):
    """See `hotshoe.slots.LinearOp`. One configuration serves every number of rows."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        config = LinearConfig("skinny", 64, 128 // itemsize_of(spec), 1, 4, 3)
        shape = (spec.out_features, spec.in_features)
        super().__init__(spec, facts, {(*shape, bucket): config for bucket in BUCKETS})

    def apply(self, x: Tensor, quantized: Quantized | None) -> Tensor:
        y = torch.empty((len(x), self._n), dtype=self._y_dtype, device=x.device)
        for first in range(0, len(x), ROWS):
            rows = slice(first, first + ROWS)
            part = None if quantized is None else (quantized[0][rows], quantized[1][rows])
            self._launches[-1](y[rows], x[rows], part)
        return y


class Moe(mixture.Moe):
    """See `hotshoe.slots.MoeOp`. One plan serves every number of tokens."""

    def __init__(self, spec: MoeSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts, mixture.one_tile(spec, facts))
