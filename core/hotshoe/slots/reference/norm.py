"""References of slots `rms_norm`, `add_rms_norm` and `layer_norm`, float32 inside, rounded once."""

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.platform import DeviceFacts
from hotshoe.slots.operations import AddNormOp, LayerNormOp, NormOp
from hotshoe.slots.reference.linear import quantized
from hotshoe.slots.specs import AddNormSpec, LayerNormSpec, NormSpec


def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float) -> Tensor:
    """Return x / rms(x) * (weight_offset + weight) over the last dimension, in x's dtype."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight.float() + weight_offset)).to(x.dtype)


def build_norm(spec: NormSpec, facts: DeviceFacts) -> NormOp:
    """Build the reference RMS norm."""

    def norm(x: Tensor, weight: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return quantized(rms_norm(x, weight, spec.eps, spec.weight_offset), spec.quant)

    return norm


def build_add_norm(spec: AddNormSpec, facts: DeviceFacts) -> AddNormOp:
    """Build the reference residual addition and norm."""

    def add_norm(
        x: Tensor, residual: Tensor, weight: Tensor
    ) -> tuple[Tensor | tuple[Tensor, Tensor], Tensor]:
        total = (residual.float() + spec.residual_scale * x.float()).to(x.dtype)
        normed = rms_norm(total, weight, spec.eps, spec.weight_offset)
        return quantized(normed, spec.quant), total

    return add_norm


def build_layer_norm(spec: LayerNormSpec, facts: DeviceFacts) -> LayerNormOp:
    """Build the reference layer norm."""

    def norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        added = None if bias is None else bias.float()
        return F.layer_norm(x.float(), weight.shape, weight.float(), added, spec.eps).to(x.dtype)

    return norm
