"""Candidates named `ipex`: kernels of Intel's extension for PyTorch, where it is installed.

They are known from its documentation, not from a run: they score below the Triton kernels and
above references. The extension is imported when an operation is built, never to find out whether
it is there.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, GatedActivationSpec, NormSpec, Verdict, accept_unless
from hotshoe_xpu.extension import hindrance

SCORE = 30
PACKAGE = DISTRIBUTION = "intel_extension_for_pytorch"
DTYPES = ("bfloat16", "float16", "float32")


def judge(dtype: str, refusals: dict[str, bool]) -> Verdict:
    """Accept what the extension has a kernel for."""
    missing = hindrance(PACKAGE, DISTRIBUTION)
    refusals = {
        missing: bool(missing),
        f"element type {dtype} is not one of {', '.join(DTYPES)}": dtype not in DTYPES,
        **refusals,
    }
    return accept_unless(refusals, SCORE, "Intel's extension for PyTorch")


def supports_norm(spec: NormSpec | AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge a norm."""
    refusals = {
        "its norms add nothing to the weight": spec.weight_offset != 0,
        "its norm's result is not quantized": spec.quant is not None,
    }
    if isinstance(spec, AddNormSpec):
        refusals["its addition has no scale"] = spec.residual_scale != 1
    return judge(spec.dtype, refusals)


def supports_activation(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge a gated activation."""
    refusals = {
        f"activation {spec.activation} is not silu": spec.activation != "silu",
        "its result is not quantized": spec.quant is not None,
    }
    return judge(spec.dtype, refusals)


def functions() -> Any:
    """Import the extension and return its functions for language models."""
    return importlib.import_module(PACKAGE).llm.functional


class Norm:
    """See `hotshoe.slots.NormOp`."""

    def __init__(self, spec: NormSpec, facts: DeviceFacts) -> None:
        self._run, self._eps = functions().rms_norm, spec.eps

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = self._run(x.contiguous(), weight, self._eps)
        return out


class AddNorm:
    """See `hotshoe.slots.AddNormOp`. Writes the new residual over the old one."""

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        self._run, self._eps = functions().add_rms_norm, spec.eps

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        # Its names are turned round: what it adds to is overwritten, as its last argument asks.
        return self._run(residual, x.contiguous(), weight, None, self._eps, True), residual


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(self, spec: GatedActivationSpec, facts: DeviceFacts) -> None:
        functions()  # registers its operators
        self._run, self._size = torch.ops.torch_ipex.silu_and_mul, spec.size

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), self._size), dtype=x.dtype, device=x.device)
        self._run(x.contiguous(), out)
        return out
