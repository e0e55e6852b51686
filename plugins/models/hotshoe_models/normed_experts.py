"""Experts of slot `moe`, what each of which puts out is normed before it is weighted."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, Linear, Matrix, Mixture, RMSNorm, RoutedExperts
from hotshoe.layers.router import Router
from hotshoe.slots import RouterSpec
from hotshoe.slots.reference.router import route
from hotshoe_models.per_layer import Vector


class ScaledNorm:
    """The RMS norm of x * (1 + weight), which is not weighted again."""

    def __init__(self, ctx: BuildContext, name: str, size: int, eps: float) -> None:
        self._weight = Vector(ctx, f"{name}.weight", size)
        self._norm = RMSNorm(ctx, None, size, eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [n, size] to the same shape."""
        normed = self._norm(torch.addcmul(x, x, self._weight.value))
        assert isinstance(normed, Tensor)
        return normed


class NormedExperts:
    """See above. The slot adds up a token's experts itself. So it gets a row for each expert of a
    token, whose logits leave it that one, and the rows are added up here.

    Adapters may not change experts: the slot's rows are no tokens.

    Args:
        ctx: The build context.
        prefix: The layer's.
        mixture: The experts, which take latents, and their router.
        factor: On logits.
        eps: Of the norm of latents, whose weight adds 1.
        output_eps: Of the norm of what experts put out.
        quantize: False keeps experts out of quantization.
    """

    input_quant = None

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        mixture: Mixture,
        factor: float,
        eps: float,
        output_eps: float,
        quantize: bool = True,
    ) -> None:
        sizes, (into, out) = (mixture.hidden_size, mixture.latent_size), mixture.names.latents
        self._router, self._factor = Router(ctx, prefix, mixture), factor
        self._spec, self._count, self._top_k = mixture.router, mixture.num_experts, mixture.top_k
        self._into = Linear(ctx, Matrix(ctx, [(prefix + into, sizes[1])], sizes[0]))
        self._norm = RMSNorm(ctx, f"{prefix}mlp.pre_expert_norm", sizes[1], eps, 1.0)
        alone = replace(mixture, router=RouterSpec(), top_k=1)
        self._experts = RoutedExperts(replace(ctx, adapters=None), prefix, alone, quantize)
        name = f"{prefix}mlp.experts.post_expert_norm"
        self._output_norm = ScaledNorm(ctx, name, sizes[1], output_eps)
        self._out = Linear(ctx, Matrix(ctx, [(prefix + out, sizes[0])], sizes[1]))
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None
        self._divided = ctx.experts.size == 1  # each rank has a part of every expert

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, hidden_size] to a new tensor of the same shape."""
        logits, correction = self._router(x, None)
        weights, chosen = route(logits * self._factor, correction, self._top_k, self._spec)
        latents = self._norm(self._into(x))
        assert isinstance(latents, Tensor)
        own = logits.new_full((chosen.numel(), self._count), -torch.inf)
        own.scatter_(1, chosen.view(-1, 1), 0.0)
        rows = self._experts(latents.repeat_interleave(self._top_k, 0), own)
        if self._sum is not None and self._divided:
            rows = self._sum(rows, rows)
        normed = self._output_norm(rows).view(len(x), self._top_k, rows.shape[1])
        total = torch.zeros_like(normed[:, 0], dtype=torch.float32)
        for part, weight in zip(normed.unbind(1), weights.unbind(1), strict=True):
            total.addcmul_(part, weight[:, None])
        y = total.to(x.dtype)
        if self._sum is not None and not self._divided:
            y = self._sum(y, y)
        return self._out(y)
