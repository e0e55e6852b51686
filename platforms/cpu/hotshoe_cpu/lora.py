"""Candidate `native` of slot `lora`: tokens are gathered by adapter, whose factors are read once.

One call serves stacked matrices: b is multiplied along its diagonal of `LoraSpec.parts` alone. Rows
that an adapter leaves zero, or all of a layer that it does not change, are not read.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LoraSpec, LoraTokens, Verdict
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: LoraSpec, facts: DeviceFacts) -> Verdict:
    """Judge the element type."""
    return judge(facts, spec.dtype)


class Lora:
    """See `hotshoe.slots.LoraOp`. It finds by itself which adapters are used."""

    def __init__(self, spec: LoraSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).lora
        self._dtype = DTYPE_CODES[spec.dtype]
        self._parts = torch.tensor(spec.parts or (spec.out_features,), dtype=torch.int64)
        self._sizes = (
            spec.in_features,
            spec.out_features,
            spec.rank,
            spec.max_adapters,
            self._parts.data_ptr(),
            self._parts.numel(),
        )

    def __call__(self, y: Tensor, x: Tensor, a: Tensor, b: Tensor, tokens: LoraTokens) -> None:
        ranks = tokens.ranks
        self._kernel(
            self._dtype,
            y.data_ptr(),
            y.stride(0),
            x.data_ptr(),
            x.stride(0),
            a.data_ptr(),
            b.data_ptr(),
            tokens.places.data_ptr(),
            x.size(0),
            *self._sizes,
            *((0, 0) if ranks is None else (ranks.data_ptr(), ranks.stride(0))),
        )
