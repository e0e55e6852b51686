"""8-bit formats: their limits, quantization of activations by row, and of weights while loading."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import QuantSpec
from hotshoe_triton.device import ARCHS, FNUZ, OCP, arch_of, chaining, next_power_of_2

ELEMENTS_PER_WARP = 512
#: Columns that share a scale where a row has several.
GROUP = 128


@dataclass(frozen=True, slots=True)
class Format:
    """An 8-bit format.

    Attributes:
        dtype: The torch type.
        limit: The largest magnitude.
    """

    dtype: torch.dtype
    limit: float

    def empty(
        self, shape: tuple[int, ...], device: torch.device, group: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return room for values of a [rows, columns] shape and their scales.

        Args:
            shape, device: Of the values.
            group: Columns that share a scale, whose scales are [rows, columns / group] then, those
                of neighboring rows side by side; 0 for whole rows.
        """
        rows, columns = shape
        values = torch.empty(shape, dtype=self.dtype, device=device)
        if group:
            scales = torch.empty((columns // group, rows), dtype=torch.float32, device=device).T
        else:
            scales = torch.empty(rows, dtype=torch.float32, device=device)
        return values, scales


INT8 = Format(torch.int8, 127.0)
FP8 = {OCP: Format(torch.float8_e4m3fn, 448.0), FNUZ: Format(torch.float8_e4m3fnuz, 240.0)}


def format_of(name: str, facts: DeviceFacts) -> Format | None:
    """Return what a specification's format is on a device; None where it has none."""
    if name == "int8":
        return INT8
    return FP8.get(arch_of(facts).fp8) if name == "fp8_e4m3" else None


def quantizes(quant: QuantSpec | None, size: int, facts: DeviceFacts) -> bool:
    """Tell whether kernels can hand over rows of such a size so; None stands for plain results."""
    if quant is None:
        return True
    known = quant in (
        QuantSpec(quant.format, "token", dynamic=True),
        QuantSpec(quant.format, "group", GROUP, dynamic=True),
    )
    known &= not size % (quant.group_size or 1)
    return known and facts.arch in ARCHS and format_of(quant.format, facts) is not None


def quantize_weight(weight: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """Quantize each row of a [out_features, in_features] weight, to the nearest, ties to even.

    Returns:
        values [out_features, in_features] of the format's type, scales [out_features] float32.
    """
    wide = weight.float()
    largest = wide.abs().amax(dim=1)
    # Divided by a tensor: devices multiply by the reciprocal of a number, which rounds differently.
    limit = torch.full_like(largest, format.limit)
    scale = torch.where(largest == 0, 1.0, largest / limit)
    values = (wide / scale[:, None]).clamp(-format.limit, format.limit)
    if not format.dtype.is_floating_point:
        values = values.round()
    return values.to(format.dtype), scale


def row_block(size: int) -> int:
    """Return the numbers of a tile that holds a row. One of 16 bits alone does not compile for
    sm_90 (Triton 3.6)."""
    return max(2, next_power_of_2(size))


def row_launch(size: int) -> dict[str, int]:
    """Return block and warps of a kernel that holds a row in registers."""
    block = row_block(size)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // ELEMENTS_PER_WARP))}


class QuantizeRows:
    """Quantizes activations [num_tokens, size], each row with its own scale or a given one."""

    def __init__(self, size: int, format: Format, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.quantize import quantize_rows

        self._kernel, self._format = quantize_rows, format
        sizes = {"SIZE": size, "LIMIT": format.limit}
        self._constants = sizes | row_launch(size) | chaining(facts)

    def __call__(self, x: Tensor, given: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return values [num_tokens, size] and scales [num_tokens] float32.

        Args:
            x: [num_tokens, size].
            given: The scale of every row, [1] float32.
        """
        out, scale = self._format.empty(x.shape, x.device)
        if len(x):
            self._kernel[(len(x),)](
                out, scale, x, scale if given is None else given, x.stride(0),
                GIVEN=given is not None, **self._constants,
            )  # fmt: skip
        return out, scale
