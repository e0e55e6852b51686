"""Limits of what opens a gated MLP, and of what passes it."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor


def clamped(
    limit: float, alpha: float, shift: float, gate_limit: float | None = None
) -> Callable[[Tensor], None]:
    """Return what makes silu(gate) * up out of gates as `hotshoe.slots.MoeSpec` has them: min(gate,
    limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + shift)."""
    top = limit if gate_limit is None else gate_limit

    def between(both: Tensor) -> None:
        gate, up = both.chunk(2, -1)
        gate.clamp_(max=top)
        up.clamp_(-limit, limit)
        if (alpha, shift) != (1.0, 0.0):
            gate.mul_(alpha)
            up.add_(shift).div_(alpha)

    return between


def before_silu(limit: float) -> float:
    """Return the x > 0 with silu(x) = limit: silu rises from there on, so that min(silu(x), limit)
    is silu(min(x, that))."""
    low, high = limit, limit + 1.0  # as x - silu(x) is 0.28 at most
    while low < (middle := (low + high) / 2) < high:
        if middle / (1.0 + math.exp(-middle)) < limit:
            low = middle
        else:
            high = middle
    return high
