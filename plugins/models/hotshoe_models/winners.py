"""Experts in groups, of each of which a token takes the best one, beside an MLP for every token.

An expert counts by its share among all, times a learned factor. Source: Tang et al. 2025 (Pangu
Pro MoE), arXiv:2505.21411.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import (
    BuildContext,
    GatedMLP,
    Holder,
    Matrix,
    Mixture,
    Place,
    RoutedExperts,
    Scores,
    Section,
)
from hotshoe.slots import RouterSpec, renewed
from hotshoe_models.idle_experts import NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Winners(Mixture):
    """See `Mixture`. There are `top_k` groups, and `router` is a softmax.

    Attributes:
        factors: Name within a layer of a factor for each expert, [1, num_experts].
    """

    factors: str = "mlp.router_scale"


class GroupWinners:
    """See above. The slot gets the logarithms of the winners' weights, so that its own choice is
    the same, and nothing of all others.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: What it consists of.
        quantize: False keeps experts out of quantization; the router always is.
    """

    input_quant = None

    def __init__(self, ctx: BuildContext, prefix: str, mixture: Winners, quantize: bool) -> None:
        assert mixture.router == RouterSpec(), "the weights are a softmax of their logarithms"
        count, size = mixture.num_experts, mixture.hidden_size
        self._groups = mixture.top_k
        self._router = Scores(ctx, prefix + mixture.names.router, count, size)
        self._experts = RoutedExperts(ctx, prefix, mixture, quantize)
        self._shared = _shared(ctx, prefix, mixture, quantize) if mixture.shared_size else None
        self._factors = torch.ones(count, device=ctx.device)
        self._name = prefix + mixture.factors
        place = Place(Holder("moe", "router", "float32", self.state), "factors", (0, count), ())
        ctx.weights.expect(self._name, (1, count), self._take, place=place)
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None

    def _take(self, tensor: Tensor) -> None:
        found = tensor[0].to(self._factors.device, torch.float32, copy=True)
        if not (found > 0).all():
            raise CheckpointError(
                f"{self._name} has factors that are not above 0; fetch the checkpoint again"
            )
        self._factors = renewed(self._factors, found)

    def state(self) -> dict[str, Tensor]:
        """Return the factors [num_experts]."""
        return {"factors": self._factors}

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape."""
        groups = self._router(x).softmax(-1).unflatten(-1, (self._groups, -1))
        best = groups.topk(1, -1)
        kept = torch.zeros_like(groups).scatter_(-1, best.indices, best.values).flatten(1)
        kept = kept * self._factors
        y = self._experts(x, kept.log().clamp_(min=NOTHING))
        y = y * kept.sum(-1, keepdim=True).to(y.dtype)
        if self._shared is not None:
            y.add_(self._shared(x))
        return y if self._sum is None else self._sum(y, y)


def _shared(ctx: BuildContext, prefix: str, mixture: Winners, quantize: bool) -> GatedMLP:
    """Build the MLP for every token; its result is this rank's summand."""
    names, size, inner = mixture.names, mixture.hidden_size, mixture.shared_size
    what, channels = "channels of shared experts", Section(inner)
    rows = [(prefix + name, inner) for name in names.shared_gate_up]
    outputs, inputs = ctx.split(what, channels, channels), ctx.split(what, channels)
    up = Matrix(ctx, rows, size, quantize=quantize, outputs=outputs)
    behind = [(prefix + names.shared_down, size)]
    down = Matrix(ctx, behind, inner, quantize=quantize, inputs=inputs).partial()
    return GatedMLP(ctx, up, down, mixture.activation)
