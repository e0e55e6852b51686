"""Candidate `native` of slot `gated_activation`."""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedActivationSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels

ACTIVATION_CODES = {"silu": 0, "gelu": 1, "gelu_tanh": 2}


def supports(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge the activation and the element type."""
    refusals = {
        f"activation {spec.activation} is unknown": spec.activation not in ACTIVATION_CODES,
        "results are not quantized": spec.quant is not None,
    }
    return judge(facts, spec.dtype, refusals)


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(self, spec: GatedActivationSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).gated_activation
        self._size = spec.size
        self._codes = (ACTIVATION_CODES[spec.activation], DTYPE_CODES[spec.dtype])

    def __call__(self, x: Tensor) -> Tensor:
        size = self._size
        rows = x.size(0)
        out = torch.empty(rows, size, dtype=x.dtype)
        self._kernel(out.data_ptr(), x.data_ptr(), rows, size, size, x.stride(0), *self._codes)
        return out
