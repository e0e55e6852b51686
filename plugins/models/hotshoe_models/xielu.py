"""The activation xIELU, whose two slopes are weights of their own for each layer.

Source: Huang and Schlag 2024, arXiv:2411.13010.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.layers import BuildContext, Holder
from hotshoe.slots import renewed

#: Numbers that a checkpoint may leave out: the slope at 0, and where expm1 stops growing.
CONSTANTS = {"beta": 0.5, "eps": -1e-6}


class Xielu:
    """p * x^2 + beta * x above 0, and n * (expm1(min(x, eps)) - x) + beta * x elsewhere.

    p is softplus(alpha_p), n is beta + softplus(alpha_n). float32 inside, rounded once.

    Args:
        ctx: The build context.
        name: Prefix of the weights.
    """

    def __init__(self, ctx: BuildContext, name: str) -> None:
        self._device = ctx.device
        self._held = {
            part: torch.full((1,), value, device=ctx.device) for part, value in CONSTANTS.items()
        }
        holder = Holder("activation", "xielu", "float32", self.state)
        for part in ("alpha_p", "alpha_n", *CONSTANTS):
            ctx.expect_alone(holder, f"{name}.{part}", 1, self._sink(part), part)
            if part in CONSTANTS:
                ctx.weights.optional(f"{name}.{part}")

    def _sink(self, part: str) -> Callable[[Tensor], None]:
        def take(tensor: Tensor) -> None:
            fresh = tensor.to(self._device, torch.float32, copy=True)
            self._held[part] = renewed(self._held.get(part), fresh)

        return take

    def state(self) -> dict[str, Tensor]:
        """Return the weights and constants, each [1] float32."""
        return dict(self._held)

    def __call__(self, x: Tensor) -> Tensor:
        """Map a tensor to the same shape and type."""
        alpha_p, alpha_n, beta, eps = (self._held[n] for n in ("alpha_p", "alpha_n", "beta", "eps"))
        wide = x.float()
        above = F.softplus(alpha_p) * wide.square()
        below = (beta + F.softplus(alpha_n)) * (torch.expm1(torch.minimum(wide, eps)) - wide)
        return (torch.where(wide > 0, above, below) + beta * wide).to(x.dtype)
