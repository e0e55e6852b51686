"""Candidate of slot `layer_norm`: one program normalizes a row."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LayerNormSpec, Verdict
from hotshoe_triton.device import chaining, judge
from hotshoe_triton.norm import MAX_SIZE
from hotshoe_triton.quantize import row_launch


def supports(spec: LayerNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge size and type."""
    wide = {f"rows are wider than {MAX_SIZE}": spec.hidden_size > MAX_SIZE}
    return judge(facts, spec.dtype, wide)


class LayerNorm:
    """See `hotshoe.slots.LayerNormOp`."""

    def __init__(self, spec: LayerNormSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.norm import layer_norm

        self._kernel, self._bias = layer_norm, spec.bias
        own = {"SIZE": spec.hidden_size, "EPS": spec.eps, "BIAS": spec.bias}
        self._constants = own | row_launch(spec.hidden_size) | chaining(facts)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(x):
            added = bias if self._bias else weight  # which is not read then
            self._kernel[(len(x),)](out, x, weight, added, x.stride(0), **self._constants)
        return out
