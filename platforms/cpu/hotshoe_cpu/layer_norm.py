"""Candidate `native` of slot `layer_norm`."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LayerNormSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: LayerNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type."""
    return judge(facts, spec.dtype)


class LayerNorm:
    """See `hotshoe.slots.LayerNormOp`."""

    def __init__(self, spec: LayerNormSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).layer_norm
        self._size = spec.hidden_size
        self._numbers = (spec.eps, DTYPE_CODES[spec.dtype])

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        size = self._size
        rows = x.size(0)
        out = torch.empty(rows, size, dtype=x.dtype)
        self._kernel(
            out.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            0 if bias is None else bias.data_ptr(),
            rows,
            size,
            size,
            x.stride(0),
            *self._numbers,
        )
        return out
