"""Quantized operands in the cases of several slots: their specifications, and their errors.

Values are compared as numbers, values times scales, so that a candidate may choose its scales; the
rounding to eight bits is allowed for, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import QuantSpec
from hotshoe.slots.reference.accepts import FLOAT_ROWS, ROW_FORMATS
from hotshoe.slots.reference.linear import FORMATS

ACTIVATIONS = tuple(QuantSpec(name, "token", dynamic=True) for name in ROW_FORMATS)
#: Weights quantized while they load, with their activations.
OPERANDS = tuple(
    {"weight": QuantSpec(a.format, "channel", online=True), "activation": a} for a in ACTIVATIONS
)
#: 4-bit floats on both sides, as checkpoints of NVFP4 and of MXFP4 have them.
FLOATS = tuple({"weight": replace(x, dynamic=False), "activation": x} for x in FLOAT_ROWS)
#: Integers of few values, as codebooks of GGUF and checkpoints of two bits have them.
FEW = tuple(
    {"weight": QuantSpec(name, "group", size, symmetric=zeros is None, values=values)}
    for name, size, zeros, values in (
        (
            "int8",
            32,
            None,
            (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
        ),
        ("int8", 16, None, (-43, -25, -8, 8, 25, 43)),
        ("int4", 32, None, (-1, 0, 1, 2)),
        ("int4", 16, "any", (0, 1, 2, 3)),
    )
)
#: The numbers of four bits, doubled, and NVFP4's scales of whole operands. By these, no number of
#: 16 bits lies in the middle of two of four bits.
DOUBLED, W_SCALE, X_SCALE = (0, 1, 2, 3, 4, 6, 8, 12), 0.0031, 0.00167
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


def stored_floats(
    parts: Sequence[int], columns: int, size: int, source: torch.Generator
) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """Draw 4-bit floats with scales for groups, as `LinearOp.load` takes them.

    Args:
        parts: Rows of each part.
        columns: Of all.
        size: Columns of a group: 16 of NVFP4, or 32 of MXFP4.
        source: Of randomness.

    Returns:
        The tensors, and the numbers that they mean.
    """
    found: dict[str, list[Tensor]] = {"weight": [], "weight_scale": []}
    for at, rows in enumerate(parts):
        codes = torch.randint(-7, 8, (rows, columns), generator=source)
        values = torch.tensor(DOUBLED)[codes.abs()] * codes.sign()
        share = torch.rand((rows, columns // size), generator=source)
        if size == 16:
            whole = torch.tensor([W_SCALE * (1 + at)])
            scale = (448 * share).to(torch.float8_e4m3fn).float() * whole / 2
            found.setdefault("weight_global_scale", []).append(whole)
            found.setdefault("input_scale", []).append(torch.tensor([X_SCALE / (1 + at)]))
        else:
            scale = torch.exp2(torch.floor(8 * share) - 6)
        found["weight"].append(values.to(torch.int8))
        found["weight_scale"].append(scale)
    pairs = zip(found["weight"], found["weight_scale"], strict=True)
    return found, [values * scale.repeat_interleave(size, 1) for values, scale in pairs]


def stored_values(
    parts: Sequence[int], columns: int, quant: QuantSpec, source: torch.Generator
) -> tuple[dict[str, list[Tensor]], list[Tensor]]:
    """Draw integers of few values as `stored_floats` draws floats of MXFP4, with zero points.

    All numbers that they mean are exact in 16 bits.

    Returns:
        The tensors, and how large what they mean is before zero points are subtracted.
    """
    found: dict[str, list[Tensor]] = {"weight": [], "weight_scale": []}
    size = quant.group_size or columns
    sizes = []
    for rows in parts:
        known = torch.tensor(quant.values, dtype=torch.int8)
        values = known[torch.randint(len(known), (rows, columns), generator=source)]
        scale = torch.exp2(
            torch.floor(8 * torch.rand((rows, columns // size), generator=source)) - 9
        )
        zero = torch.zeros(scale.shape)
        if not quant.symmetric:
            zero = torch.randint(4, scale.shape, generator=source).float()
            found.setdefault("weight_zero_point", []).append(zero)
        found["weight"].append(values)
        found["weight_scale"].append(scale)
        wide = (t.repeat_interleave(size, 1) for t in (zero, scale))
        sizes.append((values.abs() + next(wide)) * next(wide))
    return found, sizes


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
