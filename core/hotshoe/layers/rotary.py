"""Rotary tables: cosines and sines by position, for every scaling variant.

A table is computed once, in float64, and shared by the layers of equal rotation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotary:
    """A rotation: [max_position, rotary_dim] float32, cosines then sines."""

    table: Tensor
    rotary_dim: int
    interleaved: bool = False


def rotary_table(inv_freq: Tensor, num_positions: int, attention_factor: float = 1.0) -> Tensor:
    """Return the table of float64 inverse frequencies [rotary_dim / 2]."""
    positions = torch.arange(num_positions, dtype=torch.float64)
    angles = torch.outer(positions, inv_freq.double())
    return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(attention_factor).float()
