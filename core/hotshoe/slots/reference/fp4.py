"""x in 4-bit floats with a scale for each group of columns, as block-scaled products take it.

NVFP4's groups of 16 have 8-bit floats for scales, and one scale of all x beside them, which the
checkpoint has. MXFP4's groups of 32 have powers of two. Sources: OCP Microscaling Formats 1.0; the
documentation of ModelOpt.
"""

import torch
from torch import Tensor

#: The largest number of four bits, and the largest of the 8-bit floats that are scales.
LARGEST, LARGEST_SCALE = 6.0, 448.0
#: The least exponent of a scale.
LEAST = -127


def rounded(x: Tensor, size: int, whole: Tensor | None) -> Tensor:
    """Return what is left of x, as plain numbers; all of a group with NaN or infinity is NaN.

    Args:
        x: [rows, columns].
        size: Columns of a group, which divide them.
        whole: [] float32, the scale of all x; None with powers of two.

    Returns:
        [rows, columns] float32.
    """
    wide = x.float().reshape(len(x), x.shape[1] // size, size)
    largest = wide.abs().amax(2, keepdim=True)
    if whole is None:
        by = power(largest)
    else:
        share = (largest / LARGEST / whole).clamp(max=LARGEST_SCALE)
        by = share.to(torch.float8_e4m3fn).float() * whole
    by = torch.where(largest.isfinite(), by, torch.nan)
    return (nearest(wide / torch.where(by == 0, 1.0, by)) * by).flatten(1)


def power(largest: Tensor) -> Tensor:
    """Return the power of two of a group by its largest size, which becomes less than 7 by it.

    So a number loses no more than one step of the largest four bits.
    """
    mantissa, exponent = torch.frexp(largest)  # largest = mantissa * 2^exponent, mantissa < 1
    exponent = exponent - 3 + (mantissa >= 0.875).int()
    exponent = torch.where(largest == 0, LEAST, exponent).clamp(min=LEAST)
    return torch.ldexp(torch.ones_like(largest), exponent)


def nearest(values: Tensor) -> Tensor:
    """Return the nearest 4-bit floats, ties to even, at most 6 in size."""
    size = values.abs()
    step = 0.5 + 0.5 * (size >= 2).float() + (size >= 4).float()
    return ((values / step).round() * step).clamp(-LARGEST, LARGEST)
