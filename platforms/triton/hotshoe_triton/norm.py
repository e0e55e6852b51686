"""Candidates of slots `rms_norm` and `add_rms_norm`, and both with a quantized result."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AddNormOp, AddNormSpec, NormOp, NormSpec, Verdict
from hotshoe_triton.device import chaining, judge
from hotshoe_triton.quantize import Format, format_of, quantizes, row_launch

MAX_SIZE = 65536


def supports(spec: NormSpec | AddNormSpec, facts: DeviceFacts) -> Verdict:
    """Judge size, type and quantization."""
    known = quantizes(spec.quant, spec.hidden_size, facts)
    return judge(
        facts,
        spec.dtype,
        {
            f"rows are wider than {MAX_SIZE}": spec.hidden_size > MAX_SIZE,
            f"results are not quantized as {spec.quant}": not known,
        },
    )


def constants(
    spec: NormSpec | AddNormSpec, facts: DeviceFacts, limit: float = 0.0, group: int = 0
) -> dict[str, object]:
    """Return the kernel's constants; limit and group are 0 for plain results."""
    added = isinstance(spec, AddNormSpec)
    return (
        {
            "SIZE": spec.hidden_size,
            "EPS": spec.eps,
            "OFFSET": spec.weight_offset,
            "RESIDUAL_SCALE": spec.residual_scale if added else 1.0,
            "ADD": added,
            "LIMIT": limit,
            "GROUP": group,
        }
        | row_launch(spec.hidden_size)
        | chaining(facts)
    )


class Norm:
    """See `hotshoe.slots.NormOp`."""

    def __init__(self, spec: NormSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.norm import rms_norm

        self._kernel = rms_norm
        self._constants = constants(spec, facts)

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(x):
            self._kernel[(len(x),)](out, x, x, x, weight, x.stride(0), 0, **self._constants)
        return out


class AddNorm:
    """See `hotshoe.slots.AddNormOp`. Writes the new residual over the old one."""

    def __init__(self, spec: AddNormSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.norm import rms_norm

        self._kernel = rms_norm
        self._constants = constants(spec, facts)

    def __call__(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(x):
            self._kernel[(len(x),)](
                out, x, x, residual, weight, x.stride(0), residual.stride(0), **self._constants
            )
        return out, residual


class NormQuant:
    """RMS norm whose result is quantized; bitwise the norm, then quantization by itself.

    Args:
        spec: Of the norm.
        format: Of values.
        facts: The device.
        group: Columns that share a scale; 0 for a row.
    """

    def __init__(self, spec: NormSpec, format: Format, facts: DeviceFacts, group: int = 0) -> None:
        from hotshoe_triton.kernels.norm import rms_norm

        self._kernel, self._format, self._group = rms_norm, format, group
        self._constants = constants(spec, facts, format.limit, group)

    def __call__(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return values [num_tokens, hidden_size] and scales; see `Format.empty`."""
        out, scale = self._format.empty(x.shape, x.device, self._group)
        if len(x):
            self._kernel[(len(x),)](out, scale, x, x, weight, x.stride(0), 0, **self._constants)
        return out, scale


class AddNormQuant:
    """Residual addition (in place) and RMS norm whose result is quantized as in `NormQuant`."""

    def __init__(
        self, spec: AddNormSpec, format: Format, facts: DeviceFacts, group: int = 0
    ) -> None:
        from hotshoe_triton.kernels.norm import rms_norm

        self._kernel, self._format, self._group = rms_norm, format, group
        self._constants = constants(spec, facts, format.limit, group)

    def __call__(
        self, x: Tensor, residual: Tensor, weight: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return ((values, scales), new residual)."""
        out, scale = self._format.empty(x.shape, x.device, self._group)
        strides = (x.stride(0), residual.stride(0))
        if len(x):
            self._kernel[(len(x),)](out, scale, x, residual, weight, *strides, **self._constants)
        return (out, scale), residual


def build_norm(spec: NormSpec, facts: DeviceFacts) -> NormOp:
    """Build the norm that a specification asks for."""
    if spec.quant is None:
        return Norm(spec, facts)
    stored = format_of(spec.quant.format, facts)
    return NormQuant(spec, stored, facts, spec.quant.group_size or 0)


def build_add_norm(spec: AddNormSpec, facts: DeviceFacts) -> AddNormOp:
    """Build the addition and norm that a specification asks for."""
    if spec.quant is None:
        return AddNorm(spec, facts)
    stored = format_of(spec.quant.format, facts)
    return AddNormQuant(spec, stored, facts, spec.quant.group_size or 0)
