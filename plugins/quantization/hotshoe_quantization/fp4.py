"""Matrices of 4-bit floats, NVFP4 and MXFP4: two in a byte, scales by group.

Each value is half an integer, so kernels get integers of eight bits and half the scale, and pack
them again; activations stay as they are. Where the checkpoint wants them in 4-bit floats too,
kernels for both may take the matrix instead. Sources: OCP Microscaling Formats 1.0; the
documentation of ModelOpt and of compressed-tensors.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import (
    EXPERTS,
    Axis,
    Pieces,
    Shape,
    check_group,
    finite,
    positive,
)
from hotshoe_quantization.unpack import from_fp4, unpack

BYTES = frozenset({torch.uint8})
#: Two values in one, which some writers call a signed byte.
PAIRS = BYTES | {torch.int8}
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
        divides: Numbers are divided by that one scale, and x by its own.
        x_whole: The name of the one scale of x beside those of its groups, likewise.
        rounds: The checkpoint wants x in 4-bit floats as well.
        scale: The name of the scales of groups.
    """

    packed: str
    size: int
    whole: str = ""
    divides: bool = False
    x_whole: str = ""
    rounds: bool = False
    scale: str = "weight_scale"

    def as_held(self, layer: str, names: Container[str]) -> Fp4:
        """Return the scheme of a checkpoint: some have no scale of x, whatever they say."""
        lacks = self.x_whole and f"{layer}.{self.x_whole}" not in names
        return replace(self, rounds=False) if lacks else self

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return 4-bit floats by group."""
        check_group(layer, shape[1], self.size)
        floats = QuantSpec("fp4_e2m1", "group", self.size)
        native = Storage(floats, replace(floats, dynamic=True)) if self.rounds else None
        return Storage(floats, None, native)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return values and scales."""
        kinds = frozenset({torch.float8_e4m3fn}) if self.whole else EXPONENTS
        specs = {
            self.packed: Axis(1, 2).spec(layer, shape, share, PAIRS),
            self.scale: Axis(1, self.size).spec(layer, shape, share, kinds),
        }
        if self.whole:
            specs[self.whole] = Axis(None, None).spec(layer, shape, share, FLOATS)
        if self.x_whole and self.rounds:
            specs[self.x_whole] = Axis(None, None).spec(layer, shape, share, FLOATS)
        return specs

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Unpack."""
        made = {name: tensors[name] for name in tensors if name == "bias"}
        packed, stored = tensors[self.packed], tensors[self.scale]
        made["weight"] = [from_fp4(unpack(part, 4, 2 * part.shape[1])) for part in packed]
        if self.whole:
            wide = finite(layer, self.whole, tensors[self.whole])
            factors = [1 / factor if self.divides else factor for factor in wide]
            pairs = zip(stored, factors, strict=True)
            scales = [scale.float() * (factor / 2) for scale, factor in pairs]
            made["weight_global_scale"] = factors
            if self.x_whole in tensors:
                made["input_scale"] = self._of_x(layer, tensors[self.x_whole])
        else:
            scales = [power(scale) / 2 for scale in stored]
        made["weight_scale"] = finite(layer, self.scale, scales)
        return made

    def _of_x(self, layer: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        if EXPERTS in layer:  # one that saw no tokens has any number there
            made = [1 / scale.float() if self.divides else scale.float() for scale in tensors]
            known = [(one > 0) & one.isfinite() for one in made]
            return [one.where(there, 0.0) for one, there in zip(made, known, strict=True)]
        wide = positive(layer, self.x_whole, tensors)
        return [1 / scale if self.divides else scale for scale in wide]


def power(exponents: Tensor) -> Tensor:
    """Return 2 to the power of stored exponents; NaN for what is none."""
    if exponents.dtype == torch.float8_e8m0fnu:
        return exponents.float()
    powers = torch.exp2(exponents.float() - BIAS)
    return powers.where(exponents != NO_NUMBER, torch.nan)


NVFP4 = Fp4("weight", 16, "weight_scale_2", x_whole="input_scale", rounds=True)
MXFP4 = Fp4("weight", 32)
COMPRESSED = {
    "nvfp4-pack-quantized": Fp4(
        "weight_packed", 16, "weight_global_scale", True, "input_global_scale"
    ),
    "mxfp4-pack-quantized": Fp4("weight_packed", 32),
}
