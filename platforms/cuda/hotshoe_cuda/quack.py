"""Candidates `quack` of slots `rms_norm` and `add_rms_norm`: QuACK's norms, where it is installed.

They are known from their documentation, not from a run: they score below the Triton kernels, so
that one is taken only when it is asked for (`--kernel rms_norm=quack`). Source: `quack.rmsnorm` of
Dao-AILab/quack.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, NormSpec, Verdict, accept_unless
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "quack-kernels", ("0.5", "0.6")
ARCHS = ("sm_90", "sm_100", "sm_103", "sm_120")
DTYPES = ("bfloat16", "float16", "float32")


def supports(spec: NormSpec | AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge a norm, with and without an addition before it."""
    missing = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        missing: bool(missing),
        f"QuACK has no kernels for {facts.arch}, but for {', '.join(ARCHS)}": facts.arch
        not in ARCHS,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        "its norm's result is not quantized": spec.quant is not None,
        "its addition has no scale": getattr(spec, "residual_scale", 1.0) != 1.0,
    }
    return accept_unless(refusals, SCORE, "QuACK; chosen by name alone while Triton serves too")


class Norm:
    """See `hotshoe.slots.NormOp`."""

    def __init__(self, spec: NormSpec, facts: DeviceFacts) -> None:
        self._run: Any = importlib.import_module("quack").rmsnorm
        self._options = {"eps": spec.eps, "weight_offset": spec.weight_offset}

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = self._run(x.contiguous(), weight, **self._options)
        return out


class AddNorm:
    """See `hotshoe.slots.AddNormOp`. The new residual has memory of its own."""

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        self._run: Any = importlib.import_module("quack").rmsnorm
        self._options = {"eps": spec.eps, "weight_offset": spec.weight_offset, "prenorm": True}

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out, added = self._run(
            x.contiguous(), weight, residual=residual.contiguous(), **self._options
        )
        return out, added
