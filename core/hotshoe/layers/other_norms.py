"""Norms of fewer models: layer norm, and an RMS norm over vectors that ranks share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Split
from hotshoe.layers.weights import Place
from hotshoe.slots import (
    LayerNormOp,
    LayerNormSpec,
    NormOp,
    NormSpec,
    renewed,
)


class LayerNorm:
    """(x - mean) / sqrt(variance + eps) * weight + bias, over the last dimension.

    The weight is the checkpoint's plus an offset, which is added once, while it is loaded; or ones,
    where the checkpoint has neither weight nor bias.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        size: int,
        eps: float,
        *,
        bias: bool = True,
        weight_offset: float = 0.0,
        weighted: bool = True,
    ) -> None:
        bias = bias and weighted
        spec = self.spec = LayerNormSpec(size, eps, ctx.dtype, bias)
        self._op: LayerNormOp = ctx.selector.choose("layer_norm", spec)
        self._place = (ctx.device, ctx.torch_dtype)
        self._offset = weight_offset
        self._held: dict[str, Tensor] = {}
        self._ones = (
            None if weighted else torch.ones(size, device=ctx.device, dtype=ctx.torch_dtype)
        )
        holder = ctx.holder("layer_norm", spec, ctx.dtype, self)
        for part in ("weight", "bias")[: weighted + bias]:
            ctx.expect_alone(holder, f"{name}.{part}", size, partial(self._take, part), part)

    def _take(self, part: str, tensor: Tensor) -> None:
        fresh = tensor.to(*self._place, copy=True)
        if part == "weight":
            fresh += self._offset
        self._held[part] = renewed(self._held.get(part), fresh)

    def state(self) -> dict[str, Tensor]:
        """Return weight and bias, each [size], as far as the checkpoint has them."""
        return dict(self._held)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize [num_tokens, size] into a new tensor."""
        weight = self._held["weight"] if self._ones is None else self._ones
        return self._op(x, weight, self._held.get("bias"))


class DividedRMSNorm:
    """RMS norm of rows of which each rank of tensor parallelism holds a part.

    Args:
        ctx: The build context.
        name: Checkpoint prefix.
        whole: Channels of all ranks together.
        split: This rank's part. What several ranks hold, all hold equally often.
        eps: Added to the mean of squares.
    """

    def __init__(self, ctx: BuildContext, name: str, whole: int, split: Split, eps: float) -> None:
        self.size, self._ranges, self._eps = split.size, split.ranges, eps
        self._place, self._communicator = (ctx.device, ctx.torch_dtype), ctx.communicator
        self.weight = torch.empty(0)
        spec = NormSpec(self.size, eps, ctx.dtype)
        self._op: NormOp = ctx.selector.choose("rms_norm", spec)
        holder = ctx.holder("rms_norm", spec, ctx.dtype, self)
        place = Place(holder, "weight", (0, self.size), ())
        ctx.weights.expect(f"{name}.weight", (whole,), self._take, place=place)

    def _take(self, tensor: Tensor) -> None:
        own = torch.cat([tensor[begin:end] for begin, end in self._ranges])
        self.weight = renewed(self.weight, own.to(*self._place))

    def state(self) -> dict[str, Tensor]:
        """Return this rank's part of the weight."""
        return {"weight": self.weight} if self.weight.numel() else {}

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize [num_tokens, size] (row stride free) into a new tensor."""
        if self._communicator is None:
            normed = self._op(x.contiguous(), self.weight)
            assert isinstance(normed, Tensor)
            return normed
        wide = x.float()
        squares = wide.square().sum(-1, keepdim=True)
        squares = self._communicator.all_reduce(squares) / (self.size * self._communicator.size)
        return (wide * (squares + self._eps).rsqrt() * self.weight.float()).to(x.dtype)
