"""An addition and the norm behind it as one kernel, written in Helion. Imported where it is built.

A program takes one row. The configuration is given, because Helion would otherwise search for one
when the kernel is first called.
"""

from __future__ import annotations

import helion
import helion.language as hl
import torch
from torch import Tensor


@helion.kernel(config=helion.Config(block_sizes=[1], num_warps=8), static_shapes=False)
def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float, factor: float
) -> tuple[Tensor, Tensor]:
    """Return the norm of residual + factor * x, and the sum, rounded as it is kept."""
    rows, _ = x.size()
    y, total = torch.empty_like(x), torch.empty_like(residual)
    for tile in hl.tile(rows):
        added = residual[tile, :].to(torch.float32) + x[tile, :].to(torch.float32) * factor
        kept = added.to(residual.dtype)
        total[tile, :] = kept
        wide = kept.to(torch.float32)
        scale = torch.rsqrt(torch.mean(wide * wide, dim=-1, keepdim=True) + eps)
        y[tile, :] = (wide * scale * (weight[:].to(torch.float32) + offset)[None, :]).to(x.dtype)
    return y, total
