"""Candidates `native` of slots `rms_norm` and `add_rms_norm`."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, NormSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: NormSpec | AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type; linear operations here quantize their inputs themselves."""
    return judge(facts, spec.dtype, {"results are not quantized": spec.quant is not None})


class Norm:
    """See `hotshoe.slots.NormOp`."""

    def __init__(self, spec: NormSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).rms_norm
        self._size = spec.hidden_size
        self._numbers = (spec.eps, spec.weight_offset, DTYPE_CODES[spec.dtype])

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        size = self._size
        rows = x.size(0)
        out = torch.empty(rows, size, dtype=x.dtype)
        self._kernel(
            out.data_ptr(),
            x.data_ptr(),
            weight.data_ptr(),
            rows,
            size,
            size,
            x.stride(0),
            *self._numbers,
        )
        return out


class AddNorm:
    """See `hotshoe.slots.AddNormOp`. Writes the new residual over the old one."""

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).add_rms_norm
        self._size = spec.hidden_size
        code = DTYPE_CODES[spec.dtype]
        self._numbers = (spec.eps, spec.weight_offset, spec.residual_scale, code)

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        size = self._size
        rows = x.size(0)
        out = torch.empty(rows, size, dtype=x.dtype)
        self._kernel(
            out.data_ptr(),
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            rows,
            size,
            size,
            x.stride(0),
            residual.stride(0),
            *self._numbers,
        )
        return out, residual
