"""Norm layers behind slots `rms_norm` and `add_rms_norm`."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import (
    AddNormOp,
    AddNormSpec,
    NormOp,
    NormSpec,
    Quantized,
    QuantSpec,
    renewed,
)


class _NormWeight:
    """Holds one norm's weight on the device."""

    def _hold(self, ctx: BuildContext, slot: str, spec: NormSpec | AddNormSpec, name: str) -> None:
        """Ask for the weight of a norm whose operation has been chosen."""
        self._place = (ctx.device, ctx.torch_dtype)
        self.weight = torch.empty(0)
        holder = ctx.holder(slot, spec, ctx.dtype, self)
        ctx.expect_alone(holder, f"{name}.weight", spec.hidden_size, self._take, "weight")

    def _take(self, tensor: Tensor) -> None:
        self.weight = renewed(self.weight, tensor.to(*self._place, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the weight [size]."""
        return {"weight": self.weight} if self.weight.numel() else {}


class RMSNorm(_NormWeight):
    """x / rms(x) * (offset + weight); quantized where the layer behind takes it.

    Without a name the checkpoint has no weight, and it is x / rms(x).
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str | None,
        size: int,
        eps: float,
        weight_offset: float = 0.0,
        quant: QuantSpec | None = None,
    ) -> None:
        spec = ctx.fused("rms_norm", NormSpec(size, eps, ctx.dtype, weight_offset), quant)
        self._op: NormOp = ctx.selector.choose("rms_norm", spec)
        if name is None:
            self.weight = torch.ones(size, dtype=ctx.torch_dtype, device=ctx.device)
        else:
            self._hold(ctx, "rms_norm", spec, name)

    def __call__(self, x: Tensor) -> Tensor | Quantized:
        """Normalize [num_tokens, size]."""
        return self._op(x, self.weight)


class AddRMSNorm(_NormWeight):
    """residual += residual_scale * x; RMS norm of the sum, quantized as in `RMSNorm`."""

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        size: int,
        eps: float,
        weight_offset: float = 0.0,
        residual_scale: float = 1.0,
        quant: QuantSpec | None = None,
    ) -> None:
        plain = AddNormSpec(size, eps, ctx.dtype, weight_offset, residual_scale)
        spec = ctx.fused("add_rms_norm", plain, quant)
        self._op: AddNormOp = ctx.selector.choose("add_rms_norm", spec)
        self._hold(ctx, "add_rms_norm", spec, name)

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor | Quantized, Tensor]:
        """Return (normed, new residual), both [num_tokens, size]."""
        return self._op(x, residual, self.weight)
