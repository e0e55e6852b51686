"""Norms as a `DecoderSpec` asks for them: RMS or layer norm, alone or behind an addition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, cast

from torch import Tensor

from hotshoe.layers import AddRMSNorm, BuildContext, LayerNorm, RMSNorm
from hotshoe.slots import Quantized, QuantSpec
from hotshoe_models.spec import DecoderSpec

#: Maps [num_tokens, hidden_size] to the same shape.
Norm: TypeAlias = "Callable[[Tensor], Tensor | Quantized]"
#: Maps (x, residual) to (what the next block takes, the new residual); may overwrite both.
AddNorm: TypeAlias = "Callable[[Tensor, Tensor], tuple[Tensor | Quantized, Tensor]]"


def build_norm(
    spec: DecoderSpec, ctx: BuildContext, name: str | None, quant: QuantSpec | None = None
) -> Norm | None:
    """Build a norm; None where there is no name."""
    if name is None:
        return None
    if spec.norm == "layer":
        size, eps, offset = spec.hidden_size, spec.norm_eps, spec.norm_offset
        parts = {"bias": spec.norm_bias, "weighted": spec.norm_weight}
        return LayerNorm(ctx, name, size, eps, weight_offset=offset, **parts)
    own = name if spec.norm_weight else None
    return RMSNorm(ctx, own, spec.hidden_size, spec.norm_eps, spec.norm_offset, quant)


def plain_norm(spec: DecoderSpec, ctx: BuildContext, name: str) -> Callable[[Tensor], Tensor]:
    """Build the norm of embeddings, which quantizes nothing."""
    if spec.unit_embedding:
        spec = replace(spec, norm_weight=False, norm_offset=0.0)
    norm = build_norm(spec, ctx, name)
    assert norm is not None
    return cast("Callable[[Tensor], Tensor]", norm)


def post_norm(spec: DecoderSpec, ctx: BuildContext, name: str | None) -> Norm | None:
    """Build the norm of a block's output; None where there is no name."""
    own = spec if spec.post_norm_eps is None else replace(spec, norm_eps=spec.post_norm_eps)
    return build_norm(own, ctx, name)


def build_add_norm(
    spec: DecoderSpec, ctx: BuildContext, name: str | None, quant: QuantSpec | None, scale: float
) -> AddNorm:
    """Build the residual addition and the norm behind it, if there is one."""
    if name == spec.names.final_norm and spec.final_norm_offset is not None:
        spec = replace(spec, norm_offset=spec.final_norm_offset)
    if name is None or spec.norm == "layer" or not spec.norm_weight:
        return _Add(scale, build_norm(spec, ctx, name))
    eps, offset = spec.norm_eps, spec.norm_offset
    return AddRMSNorm(ctx, name, spec.hidden_size, eps, offset, scale, quant)


class _Add:
    """residual += scale * x, of which the next block takes the norm, or the sum as it is."""

    def __init__(self, scale: float, norm: Norm | None) -> None:
        self._scale, self._norm = scale, norm

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor | Quantized, Tensor]:
        """Return what the next block takes, and the sum, which overwrites the residual."""
        residual.add_(x if self._scale == 1.0 else x.mul_(self._scale))
        return (residual if self._norm is None else self._norm(residual)), residual
