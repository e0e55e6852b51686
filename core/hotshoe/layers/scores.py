"""Small products in float32 that decide: a router's logits, a gate in front of shared experts."""

from __future__ import annotations

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.ends import AdaptedLogits
from hotshoe.layers.linear import Linear
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.split import Split


class Scores:
    """y = x W^T + b in float32, whole on each rank and never quantized.

    Args:
        ctx: The build context.
        name: Checkpoint prefix.
        count: Rows of W.
        in_features: Columns of W.
        bias: There is a b.
    """

    def __init__(
        self, ctx: BuildContext, name: str, count: int, in_features: int, bias: bool = False
    ) -> None:
        matrix = Matrix(ctx, [(name, count)], in_features, bias=bias, quantize=False)
        self._linear = Linear(ctx, matrix, out_dtype="float32", adapters=False)
        self._adapted: AdaptedLogits | None = None
        if ctx.adapters is not None:
            every = Split(((0, count),))
            self._adapted = AdaptedLogits(ctx, name, (count, in_features), every, bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, count] float32, a new tensor."""
        y = self._linear(x)
        if self._adapted is not None:
            self._adapted(y, x)
        return y
