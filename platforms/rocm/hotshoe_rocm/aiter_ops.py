"""Candidates named `aiter`: AMD's own kernels, where its package is installed.

They are known from their documentation, not from a run: they score below the Triton kernels, so
that one is taken only when it is asked for (`--kernel rms_norm=aiter`). The package is imported
when an operation is built, never to find out whether it is there.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormSpec, GatedActivationSpec, NormSpec, Verdict, accept_unless
from hotshoe_triton.packages import hindrance

SCORE = 40
PACKAGE = "aiter"
DISTRIBUTION, RELEASES = "amd-aiter", ("0.1",)
#: Architectures that its kernels are built for.
ARCHS = ("gfx942", "gfx950")
DTYPES = ("bfloat16", "float16")


def judge(facts: DeviceFacts, dtype: str, refusals: dict[str, bool]) -> Verdict:
    """Accept what the package has a kernel for."""
    missing = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        missing: bool(missing),
        f"aiter has no kernels for {facts.arch}, but for {', '.join(ARCHS)}": facts.arch
        not in ARCHS,
        f"element type {dtype} is not one of {', '.join(DTYPES)}": dtype not in DTYPES,
        **refusals,
    }
    return accept_unless(refusals, SCORE, "AITER; chosen by name alone while Triton serves too")


def supports_norm(spec: NormSpec | AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge a norm."""
    refusals = {
        "its norms add nothing to the weight": spec.weight_offset != 0,
        "its norm's result is not quantized here": spec.quant is not None,
    }
    if isinstance(spec, AddNormSpec):
        refusals["its addition has no scale"] = spec.residual_scale != 1
    return judge(facts, spec.dtype, refusals)


def supports_activation(spec: GatedActivationSpec, facts: DeviceFacts) -> Verdict:
    """Judge a gated activation."""
    refusals = {
        f"activation {spec.activation} is not silu": spec.activation != "silu",
        "its result is not quantized here": spec.quant is not None,
    }
    return judge(facts, spec.dtype, refusals)


def package() -> Any:
    """Import it; its name is also a builtin function's."""
    return importlib.import_module(PACKAGE)


class Norm:
    """See `hotshoe.slots.NormOp`."""

    def __init__(self, spec: NormSpec, facts: DeviceFacts) -> None:
        self._run, self._eps = package().rms_norm, spec.eps

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = self._run(x.contiguous(), weight, self._eps)
        return out


class AddNorm:
    """See `hotshoe.slots.AddNormOp`.

    The new residual has memory of its own: where rows are long, the kernel may read twice.
    """

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        self._run, self._eps = package().rmsnorm2d_fwd_with_add, spec.eps

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        out, added = torch.empty_like(x), torch.empty_like(residual)
        self._run(out, x, residual, added, weight, self._eps)
        return out, added


class GatedActivation:
    """See `hotshoe.slots.GatedActivationOp`."""

    def __init__(self, spec: GatedActivationSpec, facts: DeviceFacts) -> None:
        self._run, self._size = package().silu_and_mul, spec.size

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((len(x), self._size), dtype=x.dtype, device=x.device)
        self._run(out, x.contiguous())
        return out
