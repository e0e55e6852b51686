"""Linear layer: the product of a `Matrix` and what it is given, behind slot `linear`."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.matrix import Matrix
from hotshoe.slots import LinearOp, LinearSpec, Quantized, QuantSpec
from hotshoe.slots.contract import takes_quantized


class Linear:
    """y = x W^T + b.

    Args:
        ctx: The build context.
        matrix: W and b.
        out_dtype: Output type, when not the model's.
        adapters: Whether adapters may change the matrix; layers of logits bring their own.
    """

    def __init__(
        self,
        ctx: BuildContext,
        matrix: Matrix,
        out_dtype: str | None = None,
        adapters: bool = True,
    ) -> None:
        spec = replace(matrix.spec, out_dtype=out_dtype)
        self._op: LinearOp = ctx.operation("linear", spec, matrix.names)
        holder = matrix.holder(ctx, "linear", spec, self._op)
        #: How the layer before may quantize what it hands over; None for not at all.
        self.input_quant = input_quant_of(spec, self._op)
        self._adapted = matrix.adapted(ctx, self._op) if adapters else None
        if self._adapted is not None:  # which are products of plain numbers
            self.input_quant = None
        self._sum, self._matrix = matrix.sum_of(ctx), matrix
        ctx.weight_bytes.append(self._op.nbytes)
        matrix.deliver(ctx, self._op.load, holder)

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features], each this rank's part."""
        y = self._op(x)
        if self._adapted is not None:
            assert isinstance(x, Tensor)
            self._adapted(y, x)
        return y if self._sum is None else self._sum(y, y)

    def again(self, ctx: BuildContext, named: Callable[[str], str]) -> Linear:
        """Return another use of the same weights, whose adapters are its own.

        Args:
            ctx: The build context, with adapters; this layer was built without.
            named: What adapters call each matrix of this use.
        """
        other = copy(self)
        other._adapted = self._matrix.adapted(ctx, self._op, named)
        if other._adapted is not None:
            other.input_quant = None
        return other


def input_quant_of(spec: LinearSpec, op: object) -> QuantSpec | None:
    """Return how the operation before may quantize what this one takes; None for not at all."""
    return spec.row_quant if takes_quantized(op) else None
