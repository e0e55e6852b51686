"""Candidate `deepgemm` of slot `linear`: 8-bit floats with scales by block, by DeepSeek's DeepGEMM.

It is known from its documentation, not from a run: it scores below the Triton kernels, so that it
is taken only when it is asked for (`--kernel linear=deepgemm`). Triton quantizes x. Source:
`fp8_gemm_nt` of deepseek-ai/DeepGEMM.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict, accept_unless
from hotshoe_triton import blocks
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "deep_gemm", ("2.5", "2.6")
#: Others want scales that are powers of two.
ARCH = "sm_90"


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and results; the rest as for Triton's kernel of the same form."""
    same = blocks.supports(spec, facts)
    if not same.accepted:
        return same
    missing = hindrance(DISTRIBUTION, RELEASES)
    y_dtype = spec.out_dtype or spec.dtype
    refusals = {
        missing: bool(missing),
        f"DeepGEMM takes such scales on {ARCH} alone, not on {facts.arch}": facts.arch != ARCH,
        f"results of type {y_dtype} are not bfloat16": y_dtype != "bfloat16",
        f"{spec.out_features} rows of a weight are not a multiple of {blocks.HEIGHT}": bool(
            spec.out_features % blocks.HEIGHT
        ),
    }
    return accept_unless(refusals, SCORE, "DeepGEMM; chosen by name alone while Triton serves too")


class Linear(blocks.Linear):
    """See `hotshoe.slots.LinearOp`. Weights whose parts share a block are left to Triton."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._run: Any = importlib.import_module("deep_gemm").fp8_gemm_nt

    def _multiply(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        if self._height != blocks.HEIGHT:
            super()._multiply(y, values, scale)
            return
        self._run((values, scale.T), (self._weight, self._scale.T), y)
        if self._bias is not None:
            y += self._bias
