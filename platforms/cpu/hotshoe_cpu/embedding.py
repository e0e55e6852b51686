"""Candidate `native` of slot `embedding`."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import EmbeddingSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: EmbeddingSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type."""
    return judge(facts, spec.dtype)


class Embedding:
    """See `hotshoe.slots.EmbeddingOp`."""

    def __init__(self, spec: EmbeddingSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).embedding
        self._num_rows, self._size, self._scale = spec.num_embeddings, spec.size, spec.scale
        self._code = DTYPE_CODES[spec.dtype]

    def __call__(self, ids: Tensor, table: Tensor) -> Tensor:
        count, size = ids.size(0), self._size
        out = torch.empty((count, size), dtype=table.dtype)
        self._kernel(
            out.data_ptr(),
            table.data_ptr(),
            ids.data_ptr(),
            count,
            size,
            self._num_rows,
            size,
            table.stride(0),
            self._scale,
            ids.dtype == torch.int64,
            self._code,
        )
        return out
