"""Candidate of slot `embedding`."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import EmbeddingSpec, Verdict
from hotshoe_triton.device import chaining, judge, next_power_of_2

BLOCK = 2048


def supports(spec: EmbeddingSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type."""
    return judge(facts, spec.dtype)


class Embedding:
    """See `hotshoe.slots.EmbeddingOp`."""

    def __init__(self, spec: EmbeddingSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.embedding import embedding

        self._kernel, self._size = embedding, spec.size
        block = min(BLOCK, next_power_of_2(spec.size))
        self._chunks = -(-spec.size // block)
        self._constants = {
            "SIZE": spec.size,
            "SCALE": spec.scale,
            "BLOCK": block,
            "num_warps": max(1, block // 512),
        } | chaining(facts)

    def __call__(self, ids: Tensor, table: Tensor) -> Tensor:
        count = ids.size(0)
        out = torch.empty((count, self._size), dtype=table.dtype, device=table.device)
        if count:
            grid = (count, self._chunks)
            self._kernel[grid](out, ids, table, table.stride(0), **self._constants)
        return out
