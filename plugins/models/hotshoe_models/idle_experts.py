"""Experts of slot `moe`, of which some have no weights: they put out what they take, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, Holder, Mixture, Place, RoutedExperts
from hotshoe.slots import RouterSpec, renewed

#: Stands for the logarithm of 0; softmax makes 0 of it.
NOTHING = -1e30


class IdleExperts:
    """See above. A token chooses among all of them here. The slot gets the logarithms of the
    weights of those that compute, so that its own choice is the same, and nothing of all others.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: The experts that compute; a softmax of logits has to be their weights.
        idle: How many others there are.
        passes: These put out what they take; else nothing.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, mixture: Mixture, idle: int, passes: bool = True
    ) -> None:
        assert mixture.router == RouterSpec() and not mixture.shared_size
        self._count, self._top_k, self._scale = mixture.num_experts, mixture.top_k, mixture.scale
        self._passes, total = passes, self._count + idle
        self._correction = torch.zeros(total, device=ctx.device)
        holder = Holder("moe", "router", "float32", self.state)
        place = Place(holder, "correction", (0, total), ())
        name = prefix + mixture.names.correction
        ctx.weights.expect(name, (total,), self._take, place=place)
        self._experts = RoutedExperts(ctx, prefix, mixture)
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None

    def _take(self, tensor: Tensor) -> None:
        found = tensor.to(self._correction.device, torch.float32, copy=True)
        self._correction = renewed(self._correction, found)

    def state(self) -> dict[str, Tensor]:
        """Return the correction [num_experts + idle]."""
        return {"correction": self._correction}

    def __call__(self, x: Tensor, logits: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape.

        Args:
            x: What experts take.
            logits: [num_tokens, num_experts + idle] float32, idle ones behind the others.
        """
        scores = logits.softmax(-1)
        chosen = (scores + self._correction).topk(self._top_k, -1).indices
        kept = torch.zeros_like(scores).scatter_(1, chosen, scores.gather(1, chosen))
        computing, idle = kept[:, : self._count], kept[:, self._count :].sum(-1, keepdim=True)
        weight = computing.sum(-1, keepdim=True).mul_(self._scale)
        y = self._experts(x, computing.log().clamp_(min=NOTHING))
        y = y * weight.to(y.dtype)
        if self._sum is not None:
            y = self._sum(y, y)
        return y.add_(x * idle.mul_(self._scale).to(x.dtype)) if self._passes else y
