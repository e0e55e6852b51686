"""Experts of slot `moe`, and small ones beside them, one for each group of neighbors."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, Mixture, RoutedExperts
from hotshoe.layers.router import Router
from hotshoe.slots import RouterSpec
from hotshoe_models.idle_experts import NOTHING


class Adjugates:
    """See above. A small expert counts as much as those of its group together that a token has
    chosen, times a factor. The slot gets the logarithms of their weights' sums, so that its own
    choice is the same.

    Source: Wu et al. 2025, arXiv:2508.07785.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: The experts, whose weights sum to 1.
        small: Of each group; its router says the factor.
        quantize: False keeps experts out of quantization.
    """

    input_quant = None

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        mixture: Mixture,
        small: Mixture,
        quantize: bool = True,
    ) -> None:
        assert mixture.router == RouterSpec(renormalize=True) and small.router.renormalize
        self._router = Router(ctx, prefix, mixture)
        self._top_k, self._groups = mixture.top_k, small.num_experts
        self._experts = RoutedExperts(ctx, prefix, mixture, quantize)
        fixed = replace(ctx, mixtures=[], redundant_experts=None)  # the others alone are balanced
        self._small = RoutedExperts(fixed, prefix, small, quantize)
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape."""
        logits, _ = self._router(x, None)
        own, chosen = logits.topk(self._top_k, -1)
        weights = torch.zeros_like(logits).scatter_(1, chosen, own.softmax(-1))
        sums = weights.view(len(x), self._groups, -1).sum(-1)
        y = self._experts(x, logits).add_(self._small(x, sums.log().clamp_(min=NOTHING)))
        return y if self._sum is None else self._sum(y, y)
