"""Checkpoints whose experts are 4-bit floats with exponents for scales, as gpt-oss has them.

A tensor holds one matrix of all experts, so a layer's own prefix ends with the expert's number;
`hotshoe.layers.MoE` cuts it. Sources: the model cards of gpt-oss, arXiv:2508.10925, and OCP
Microscaling Formats 1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import OnlineFormat, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.fp4 import BIAS, BYTES, EXPONENTS, MXFP4, power
from hotshoe_quantization.stored import (
    EXPERTS,
    Axis,
    Pieces,
    Scheme,
    Shape,
    StoredFormat,
    check_group,
    finite,
)
from hotshoe_quantization.unpack import from_fp4, unpack
from hotshoe_quantization.values import Values, matches_pattern

#: Numbers that share an exponent.
GROUP = 32
#: The exponent of the largest value, 6.
LARGEST = 2


@dataclass(frozen=True, slots=True)
class Blocks:
    """`blocks` [outputs, groups, 16] and `scales` [outputs, groups], bytes both."""

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return 4-bit floats by group."""
        check_group(layer, shape[1], GROUP)
        return Storage(QuantSpec("fp4_e2m1", "group", GROUP))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return values and exponents."""
        scales = Axis(1, GROUP).spec(layer, shape, share, EXPONENTS)
        blocks = TensorSpec((*scales.shape, GROUP // 2), scales.pieces, BYTES, scales.padding)
        return {"blocks": blocks, "scales": scales}

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack; values are doubled, scales halved."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        packed = [part.flatten(1) for part in tensors["blocks"]]
        made["weight"] = [from_fp4(unpack(part, 4, 2 * part.shape[1])) for part in packed]
        scales = [power(part) / 2 for part in tensors["scales"]]
        return made | {"weight_scale": finite(layer, "scales", scales)}


class Online(OnlineFormat):
    """The same of plain weights: an exponent for each 32 inputs, and the nearest values.

    Source of the exponents: OCP Microscaling Formats 1.0, 6.3.
    """

    def storage(self, layer: str, shape: Shape) -> Storage | None:
        """Return 4-bit floats by group.

        Raises:
            ConfigError: Groups do not divide the inputs.
        """
        if shape[1] % GROUP:
            raise ConfigError(
                f"quantization: groups of {GROUP} do not divide the {shape[1]} inputs of {layer}; "
                "use int8"
            )
        return MXFP4.storage(layer, shape)

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Quantize the pieces."""
        made = [_nearest(part) for part in tensors["weight"]]
        values, scales = ([one[i] for one in made] for i in (0, 1))
        return dict(tensors) | {"weight": values, "weight_scale": scales}


def _nearest(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return values, doubled, int8 [rows, columns] and halved scales [rows, groups]."""
    wide = weight.float().unflatten(1, (-1, GROUP))
    largest = wide.abs().amax(2, keepdim=True)
    _, exponent = torch.frexp(largest)  # of which 2 more is the one of 6
    scale = torch.ldexp(torch.full_like(largest, 0.5), (exponent - 1 - LARGEST).clamp(-BIAS, BIAS))
    scale = torch.where(largest.isfinite(), scale, torch.nan)
    doubled = wide / scale
    step = 1 + (doubled.abs() >= 4).float() + 2 * (doubled.abs() >= 8).float()
    values = ((doubled / step).round() * step).clamp(-12, 12)
    return values.flatten(1).to(torch.int8), scale.squeeze(2)


def read(config: Mapping[str, Any]) -> StoredFormat:
    """Read a `quantization_config` of method mxfp4: experts alone are quantized.

    Raises:
        CheckpointError: It is malformed.
    """
    kept = Values(config).names("modules_to_not_convert")
    scheme = Blocks()

    def choose(layer: str) -> Scheme | None:
        return scheme if EXPERTS in layer and not matches_pattern(kept, layer) else None

    return StoredFormat(choose)
