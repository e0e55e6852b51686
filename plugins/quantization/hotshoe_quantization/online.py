"""Online quantization of any unquantized checkpoint.

Weights are quantized while they load, to the nearest value. With eight bits for both operands
(W8A8) they have a scale per output channel, and activations, in every step, one per token.
Otherwise weights alone are quantized, of all matrices or of those whose x would lose much. Says so
as data; the kernels behind slot `linear` do it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import OnlineFormat, Storage
from hotshoe.slots import QuantSpec
from hotshoe_quantization.stored import EXPERTS

#: The largest value of four bits, and shares of a group's range that are tried for its values.
MOST = 15
RANGES = (1.0, 0.93, 0.86)


class Grouped(OnlineFormat):
    """Integers of four bits with a scale and a zero point for each group of inputs.

    They are made here, so that kernels get what they get of stored ones. Zero points are no
    integers: the least of a group is exact. See `hotshoe.layers.WeightFormat`.

    Args:
        size: Inputs of a group.
    """

    def __init__(self, size: int) -> None:
        super().__init__(Storage(QuantSpec("int4", "group", size, symmetric=False)))
        self._size = size

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the one form.

        Raises:
            ConfigError: Groups do not divide the inputs.
        """
        self._check(layer, shape[1])
        return super().storage(layer, shape)

    def canonical(
        self, layer: str, tensors: Mapping[str, Sequence[Tensor]]
    ) -> Mapping[str, Sequence[Tensor]]:
        """Quantize the pieces."""
        self._check(layer, tensors["weight"][0].shape[1])
        made = [quantized_groups(part, self._size) for part in tensors["weight"]]
        names = ("weight", "weight_scale", "weight_zero_point")
        return dict(tensors) | dict(zip(names, map(list, zip(*made, strict=True)), strict=True))

    def _check(self, layer: str, inputs: int) -> None:
        if inputs % self._size:
            raise ConfigError(
                f"quantization: groups of {self._size} do not divide the {inputs} inputs of "
                f"{layer}; use a smaller one, such as int4, or int8"
            )


def quantized_groups(weight: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize a matrix to four bits, by the range of each group that errs least.

    Args:
        weight: [rows, columns].
        size: Columns of a group.

    Returns:
        Values int8 [rows, columns] from 0 to 15, and scales and zero points, float32
        [rows, groups].
    """
    wide = weight.float().unflatten(1, (-1, size))
    low, high = wide.aminmax(dim=2, keepdim=True)
    middle, best = (low + high) / 2, torch.full_like(low, torch.inf)
    values, scale, zero = torch.empty_like(wide), torch.ones_like(low), torch.zeros_like(low)
    for share in RANGES:
        step = (high - low) * (share / MOST)
        # Where all are alike, they are the least of them, whatever the step.
        step = torch.where(step > 0, step, low.abs().clamp(min=torch.finfo(torch.float32).tiny))
        shift = (middle - low) / step * share - middle / step
        found = (wide / step + shift).round().clamp(0, MOST)
        error = ((found - shift) * step - wide).square().sum(2, keepdim=True)
        better = error < best
        best = torch.where(better, error, best)
        values = torch.where(better, found, values)
        scale, zero = torch.where(better, step, scale), torch.where(better, shift, zero)
    return values.flatten(1).to(torch.int8), scale.squeeze(2), zero.squeeze(2)


class Floats(OnlineFormat):
    """8-bit floats; experts multiply x as it is, as those of stored ones."""

    def __init__(self) -> None:
        weight = QuantSpec("fp8_e4m3", "channel", online=True)
        super().__init__(Storage(weight, QuantSpec("fp8_e4m3", "token", dynamic=True)))
        self._experts = Storage(weight)

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of a matrix."""
        return self._experts if EXPERTS in layer else super().storage(layer, shape)


def int8() -> OnlineFormat:
    """Quantize weights and activations to integers."""
    weight = QuantSpec("int8", "channel", online=True)
    return OnlineFormat(Storage(weight, QuantSpec("int8", "token", dynamic=True)))


def int8_weights() -> OnlineFormat:
    """Quantize weights alone, with a scale per output channel."""
    return OnlineFormat(Storage(QuantSpec("int8", "channel", online=True)))


class Mixed(OnlineFormat):
    """Integers of eight bits; x is quantized too where it has no columns much larger than others.

    That is what attention has summed up, and what a norm without such columns hands to an MLP. What
    queries, keys and values are made of has them, and so has the product with a gate.
    """

    #: Matrices of such inputs, by the last part of their names.
    EVEN = re.compile(r"\.(gate_proj|up_proj|gate_up_proj|o_proj|out_proj)$")

    def __init__(self) -> None:
        weight = QuantSpec("int8", "channel", online=True)
        super().__init__(Storage(weight))
        self._even = Storage(weight, QuantSpec("int8", "token", dynamic=True))

    def storage(self, layer: str, shape: tuple[int, int]) -> Storage | None:
        """Return the form of a matrix; experts of a mixture have one form for all of theirs."""
        if EXPERTS not in layer and self.EVEN.search(layer):
            return self._even
        return super().storage(layer, shape)


def int4(size: int = 32) -> OnlineFormat:
    """Quantize weights alone, to four bits, with a scale for each group of inputs."""
    return Grouped(size)


fp8 = Floats
int8_mixed = Mixed
int4_64 = partial(int4, 64)
int4_128 = partial(int4, 128)
