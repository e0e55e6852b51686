"""Matrices with an element of storage for each number: int8 or 8-bit floats, and their scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import FLOATS, Share, Storage, TensorSpec
from hotshoe.slots import QuantSpec
from hotshoe_quantization.fp4 import EXPONENTS, power
from hotshoe_quantization.stored import (
    EXPERTS,
    Axis,
    Pieces,
    Shape,
    by_rows,
    check_group,
    finite,
    positive,
    with_x_left,
)

DTYPES = {"int4": torch.int8, "int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}
ZEROS = frozenset({torch.int8, torch.int32})
#: Scales may be powers of two, stored as exponents alone.
SCALES = FLOATS | {torch.float8_e8m0fnu}


@dataclass(frozen=True, slots=True)
class Elements:
    """`weight` [outputs, inputs] and its scales. See `hotshoe_quantization.stored.Scheme`.

    Experts of 8-bit floats multiply x as it is: nearer to the exact product, and as fast while each
    expert has few tokens, as only weights are read. So do integers of four bits and MXFP8.

    Attributes:
        weight: As the checkpoint has it: by "tensor", "channel", "group" or "block".
        activation: Of x; `input_scale` is stored where it is not dynamic, and read but for experts.
        scale: The name of the scales, by which values are multiplied.
        exponents: Scales are powers of two, stored as bytes.
    """

    weight: QuantSpec
    activation: QuantSpec | None = None
    scale: str = "weight_scale"
    exponents: bool = False

    def storage(self, layer: str, shape: Shape) -> Storage:
        """Return the stored form; kernels see a matrix's one scale as one of each row."""
        check_group(layer, shape[1], self.weight.group_size)
        activation = self._of_x(layer)
        left = self.activation if activation is None else None
        if self.weight.granularity != "tensor":
            if left is not None:
                return with_x_left(layer, self.weight, left)
            return Storage(self.weight, activation)
        by_channel = QuantSpec(self.weight.format, "channel", symmetric=self.weight.symmetric)
        return Storage(by_channel, activation, left=left)

    def tensors(self, layer: str, shape: Shape, share: Share) -> Mapping[str, TensorSpec]:
        """Return weight, scales, zero points, and the scale of x."""
        axis = self._axis()
        specs = {
            "weight": Axis().spec(layer, shape, share, frozenset({DTYPES[self.weight.format]})),
            self.scale: axis.spec(layer, shape, share, EXPONENTS if self.exponents else SCALES),
        }
        if self.weight.format == "int4":
            specs["weight"] = replace(specs["weight"], drawn=_drawn)
        if not self.weight.symmetric:
            specs["weight_zero_point"] = axis.spec(layer, shape, share, ZEROS)
        activation = self._of_x(layer)
        if activation is not None and not activation.dynamic:
            specs["input_scale"] = Axis(None, None).spec(layer, shape, share, FLOATS)
        return specs

    def _of_x(self, layer: str) -> QuantSpec | None:
        alone = EXPERTS in layer and self.weight.format.startswith("fp8")
        plain = alone or self.exponents or self.weight.format == "int4"
        return None if plain else self.activation

    def _axis(self) -> Axis:
        """Return what a scale covers."""
        return {
            "tensor": Axis(None, None),
            "channel": Axis(1, None),
            "group": Axis(1, self.weight.group_size),
            "block": Axis(*(self.weight.block_shape or (1, 1))),
        }[self.weight.granularity]

    def canonical(self, layer: str, tensors: Pieces) -> Pieces:
        """Return the tensors under the names of `LinearOp.load`."""
        made = dict(tensors)
        if self.weight.format == "int4":
            _check_range(layer, made["weight"])
        scales = made.pop(self.scale)
        scales = [power(scale) for scale in scales] if self.exponents else scales
        made["weight_scale"] = finite(layer, self.scale, scales)
        if self.weight.granularity == "tensor":
            for name in {"weight_scale", "weight_zero_point"} & made.keys():
                made[name] = by_rows(made[name], made["weight"])
        if "input_scale" in made:
            made["input_scale"] = positive(layer, "input_scale", made["input_scale"])
        return made


def _drawn(values: Tensor) -> Tensor:
    """Bring random bytes to four bits."""
    return values.remainder(16) - 8


def _check_range(layer: str, parts: Sequence[Tensor]) -> None:
    """Refuse integers of more than four bits, which would spill into their neighbors.

    Raises:
        CheckpointError: There are some.
    """
    for part in parts:
        if part.numel() and not -8 <= int(part.min()) <= int(part.max()) <= 7:
            raise CheckpointError(
                f"{layer}.weight, or that of a matrix stacked with it, has integers beyond -8 to "
                "7, though quantization_config means four bits; export the checkpoint again"
            )


#: OCP's 8-bit floats with an exponent for 32 of them. x stays as it is, nearer to the product.
MXFP8 = Elements(
    QuantSpec("fp8_e4m3", "group", 32),
    QuantSpec("fp8_e4m3", "group", 32, dynamic=True),
    exponents=True,
)
