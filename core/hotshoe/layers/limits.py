"""Limits of what opens a gated MLP, and of what passes it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def clamped(limit: float, alpha: float, shift: float) -> Callable[[Tensor], None]:
    """Return what makes silu(gate) * up out of gates as `hotshoe.slots.MoeSpec` has them: min(gate,
    limit) * sigmoid(alpha * min(gate, limit)) * (clamp(up, -limit, limit) + shift)."""

    def between(both: Tensor) -> None:
        gate, up = both.chunk(2, -1)
        gate.clamp_(max=limit)
        up.clamp_(-limit, limit)
        if (alpha, shift) != (1.0, 0.0):
            gate.mul_(alpha)
            up.add_(shift).div_(alpha)

    return between
