"""Candidate `helion` of slot `add_rms_norm`: addition and norm as a kernel written in Helion.

It was run by Helion's own interpreter, not on hardware: it scores below the Triton kernels, so that
it is taken only when it is asked for (`--kernel add_rms_norm=helion`). Source of the language:
pytorch/helion.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, Verdict, accept_unless
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "helion", ("1.5",)
DTYPES = ("bfloat16", "float16", "float32")
#: A program keeps a row in registers.
MOST = 16384


def supports(spec: AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and the length of a row."""
    missing = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        missing: bool(missing),
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        "its norm's result is not quantized": spec.quant is not None,
        f"rows of {spec.hidden_size} exceed {MOST}": spec.hidden_size > MOST,
    }
    return accept_unless(refusals, SCORE, "Helion; chosen by name alone while Triton serves too")


class AddNorm:
    """See `hotshoe.slots.AddNormOp`. The new residual has memory of its own."""

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        self._run: Any = importlib.import_module("hotshoe_cuda.kernels.fused").add_rms_norm
        self._numbers = (spec.eps, spec.weight_offset, spec.residual_scale)

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        y, total = self._run(x.contiguous(), residual.contiguous(), weight, *self._numbers)
        return y, total
