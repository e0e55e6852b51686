"""Quantized operands in the cases of several slots: their specifications, and their errors.

Values are compared as numbers, values times scales, so that a candidate may choose its scales; the
rounding to eight bits is allowed for, and no more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import QuantSpec
from hotshoe.slots.reference.accepts import ROW_FORMATS
from hotshoe.slots.reference.linear import FORMATS

ACTIVATIONS = tuple(QuantSpec(name, "token", dynamic=True) for name in ROW_FORMATS)
#: Weights quantized while they load, with their activations.
OPERANDS = tuple(
    {"weight": QuantSpec(a.format, "channel", online=True), "activation": a} for a in ACTIVATIONS
)
#: Half a step, and a little for the scale.
HALF = 0.55


def plain(y: Any, quant: QuantSpec | None) -> Tensor:
    """Return an operation's result as numbers; a quantized one is values and scales by token."""
    if quant is None:
        assert isinstance(y, Tensor), f"returned {type(y).__name__}, not a tensor"
        return y
    assert isinstance(y, tuple), f"returned {type(y).__name__}, not values and scales"
    values, scales = y
    wanted, _ = FORMATS[quant.format]
    assert values.dtype == wanted, f"values are {values.dtype}, not {wanted}"
    assert scales.dtype == torch.float32, f"scales are {scales.dtype}, not float32"
    assert scales.shape == values.shape[:1], f"scales have shape {list(scales.shape)}"
    return values.float() * scales[:, None]


def spoil(x: Tensor) -> None:
    """Put NaN into the row in the middle, in its last third."""
    x[len(x) // 2, 2 * x.shape[1] // 3] = float("nan")


def rounding(values: Tensor, quant: QuantSpec) -> Tensor:
    """Return how far quantizing by row may move each value.

    Integers have steps of one size; eight-bit floats have three bits after the leading one, and
    the step of their smallest normal number, 2^-6, below that.
    """
    _, largest = FORMATS[quant.format]
    scale = values.abs().amax(-1, keepdim=True) / largest if values.numel() else values
    if quant.format.startswith("fp8"):
        return HALF * torch.maximum(values.abs() * 2**-3, scale * 2**-9)
    return HALF * scale.expand(values.shape)
