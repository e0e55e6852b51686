"""Linear layer: one or several checkpoint matrices, stacked by rows, behind slot `linear`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import LinearOp, LinearSpec


class Linear:
    """y = x W^T + b, W stacked from parts such as q, k and v.

    Args:
        ctx: The build context.
        parts: Checkpoint prefixes and their output sizes, in row order.
        in_features: Input size.
        bias: The parts have biases.
        out_dtype: Output type, when not the model's.
        quantize: False keeps the layer out of quantisation, as model data demands.
    """

    def __init__(
        self,
        ctx: BuildContext,
        parts: Sequence[tuple[str, int]],
        in_features: int,
        *,
        bias: bool = False,
        out_dtype: str | None = None,
        quantize: bool = True,
    ) -> None:
        weight, activation = (
            ctx.quantization.operands(parts[0][0])
            if ctx.quantization is not None and quantize
            else (None, None)
        )
        spec = LinearSpec(
            in_features,
            sum(size for _, size in parts),
            ctx.dtype,
            bias=bias,
            weight=weight,
            activation=activation,
            out_dtype=out_dtype,
        )
        self._op: LinearOp = ctx.selector.choose("linear", spec)
        ctx.weight_bytes.append(self._op.nbytes)
        self._pending: dict[str, list[Tensor | None]] = {}
        for i, (name, size) in enumerate(parts):
            self._expect(ctx, "weight", i, len(parts), name, (size, in_features))
            if bias:
                self._expect(ctx, "bias", i, len(parts), name, (size,))

    def _expect(
        self, ctx: BuildContext, kind: str, i: int, count: int, name: str, shape: tuple[int, ...]
    ) -> None:
        self._pending.setdefault(kind, [None] * count)
        ctx.weights.expect(f"{name}.{kind}", shape, partial(self._take, kind, i))

    def _take(self, kind: str, index: int, tensor: Tensor) -> None:
        """Keep a part; once all are here, let the kernel prepare them and let go of them."""
        self._pending[kind][index] = tensor
        complete = {k: [p for p in parts if p is not None] for k, parts in self._pending.items()}
        if all(len(complete[k]) == len(parts) for k, parts in self._pending.items()):
            self._op.load(complete)
            for parts in self._pending.values():
                parts[:] = [None] * len(parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features]."""
        return self._op(x)
