"""Matrices of 4-bit floats, NVFP4 and MXFP4: two in a byte, scales by group.

Each value is half an integer, so kernels get integers of eight bits and half the scale: the same
numbers, in twice the memory. Activations stay as they are, which is nearer to the exact product
than their quantized form. Sources: OCP Microscaling Formats 1.0; the documentation of ModelOpt and
of compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import Axis, Pieces, Shape, check_group, finite
from hotshoe_quantization.unpack import from_fp4, unpack

BYTES = frozenset({torch.uint8})
#: Exponents come as bytes, or as the type that they are.
EXPONENTS = BYTES | {torch.float8_e8m0fnu}
#: A scale of eight bits that are an exponent alone has this added to it, and this for NaN.
BIAS, NO_NUMBER = 127, 255


@dataclass(frozen=True, slots=True)
class Fp4:
    """See `hotshoe_quantization.stored.Scheme`.

    Attributes:
        packed: The name of the values.
        size: Of a group.
        whole: The name of the one scale beside those of groups; "" where these are exponents.
        divides: Numbers are divided by that one scale.
    """

    packed: str
    size: int
    whole: str = ""
    divides: bool = False

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return integers of eight bits by group; with exponents, 4-bit floats."""
        check_group(layer, shape[1], self.size)
        if not self.whole:
            return Storage(QuantSpec("fp4_e2m1", "group", self.size))
        return Storage(QuantSpec("int8", "group", self.size))

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return values and scales."""
        kinds = frozenset({torch.float8_e4m3fn}) if self.whole else EXPONENTS
        specs = {
            self.packed: Axis(1, 2).spec(layer, shape, share, BYTES),
            "weight_scale": Axis(1, self.size).spec(layer, shape, share, kinds),
        }
        if self.whole:
            specs[self.whole] = Axis(None, None).spec(layer, shape, share, FLOATS)
        return specs

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        packed = tensors[self.packed]
        made["weight"] = [from_fp4(unpack(part, 4, 2 * part.shape[1])) for part in packed]
        if self.whole:
            wide = finite(layer, self.whole, tensors[self.whole])
            factors = [1 / factor if self.divides else factor for factor in wide]
            pairs = zip(tensors["weight_scale"], factors, strict=True)
            scales = [scale.float() * (factor / 2) for scale, factor in pairs]
        else:
            scales = [power(scale) / 2 for scale in tensors["weight_scale"]]
        made["weight_scale"] = finite(layer, "weight_scale", scales)
        return made


def power(exponents: Tensor) -> Tensor:
    """Return 2 to the power of stored exponents; NaN for what is none."""
    if exponents.dtype == torch.float8_e8m0fnu:
        return exponents.float()
    powers = torch.exp2(exponents.float() - BIAS)
    return powers.where(exponents != NO_NUMBER, torch.nan)


NVFP4 = Fp4("weight", 16, "weight_scale_2")
MXFP4 = Fp4("weight", 32)
COMPRESSED = {
    "nvfp4-pack-quantized": Fp4("weight_packed", 16, "weight_global_scale", divides=True),
    "mxfp4-pack-quantized": Fp4("weight_packed", 32),
}
