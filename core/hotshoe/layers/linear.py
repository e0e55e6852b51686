"""Linear layer: one or several checkpoint matrices, stacked by rows, behind slot `linear`.

With tensor parallelism a matrix is split by its outputs (rows of W; each rank computes a part of
y) or by its inputs (columns of W; each rank computes a summand of y, and the ranks add up).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Split
from hotshoe.slots import LinearOp, LinearSpec, Quantised

Load = Callable[[Mapping[str, Sequence[Tensor]]], None]


class Matrix:
    """Checkpoint matrices stacked by rows, such as q, k and v: this rank's part of them.

    Args:
        ctx: The build context.
        parts: Checkpoint prefixes and their output sizes, in row order.
        in_features: Input size.
        bias: The parts have biases.
        quantize: False keeps them out of quantisation, as model data demands.
        outputs: This rank's part of the stacked rows; None for all.
        inputs: This rank's part of x; the ranks' results are then added. None for all.

    Attributes:
        spec: What computes with this rank's part.
    """

    def __init__(
        self,
        ctx: BuildContext,
        parts: Sequence[tuple[str, int]],
        in_features: int,
        *,
        bias: bool = False,
        quantize: bool = True,
        outputs: Split | None = None,
        inputs: Split | None = None,
    ) -> None:
        weight, activation = (
            ctx.quantization.operands(parts[0][0])
            if ctx.quantization is not None and quantize
            else (None, None)
        )
        self._parts, self._in_features, self._bias = parts, in_features, bias
        self._outputs = outputs or Split(((0, sum(size for _, size in parts)),))
        self._adds = inputs is not None and ctx.communicator is not None
        inputs = inputs or Split(((0, in_features),))
        self.spec = LinearSpec(
            inputs.size,
            self._outputs.size,
            ctx.dtype,
            bias=bias and (ctx.rank == 0 or not self._adds),  # added once
            weight=weight,
            activation=activation,
        )
        [self._columns] = inputs.within(0, in_features)
        self._pending: dict[str, list[list[Tensor] | None]] = {}

    def sum_of(self, ctx: BuildContext) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return what adds up the ranks' results, in place; None where each has its own."""
        return ctx.communicator.all_reduce if self._adds and ctx.communicator else None

    def deliver(self, ctx: BuildContext, load: Load) -> None:
        """Ask for the checkpoint's tensors; once all are here, `load` gets this rank's part."""
        kinds = ("weight", "bias") if self.spec.bias else ("weight",)
        self._pending = {kind: [None] * len(self._parts) for kind in kinds}
        begin = 0
        for i, (name, size) in enumerate(self._parts):
            rows, begin = self._outputs.within(begin, begin + size), begin + size
            padding = self._outputs.padding if i + 1 == len(self._parts) else 0
            shapes: dict[str, tuple[int, ...]] = {"weight": (size, self._in_features)}
            shapes |= {"bias": (size,)} if self._bias else {}
            for kind, shape in shapes.items():
                sink = partial(self._take, load, kind, i, rows, padding)
                ctx.weights.expect(f"{name}.{kind}", shape, sink)

    def _take(
        self, load: Load, kind: str, index: int, rows: Sequence[slice], padding: int, tensor: Tensor
    ) -> None:
        """Keep this rank's part; once all are here, let the kernel prepare them, and let go."""
        if kind not in self._pending:
            return
        if kind == "weight":
            tensor = tensor[:, self._columns]
        kept = [tensor[part] for part in rows]
        if padding:
            kept.append(tensor.new_zeros((padding, *tensor.shape[1:])))
        self._pending[kind][index] = kept
        complete = {k: [p for p in parts if p is not None] for k, parts in self._pending.items()}
        if all(len(complete[k]) == len(parts) for k, parts in self._pending.items()):
            load({k: [t for part in parts for t in part] for k, parts in complete.items()})
            for parts in self._pending.values():
                parts[:] = [None] * len(parts)


class Linear:
    """y = x W^T + b.

    Args:
        ctx: The build context.
        matrix: W and b.
        out_dtype: Output type, when not the model's.
    """

    def __init__(self, ctx: BuildContext, matrix: Matrix, out_dtype: str | None = None) -> None:
        spec = replace(matrix.spec, out_dtype=out_dtype)
        self._op: LinearOp = ctx.selector.choose("linear", spec)
        #: How the layer before may quantise what it hands over; None for not at all.
        self.input_quant = spec.activation if takes_quantised(self._op) else None
        self._sum = matrix.sum_of(ctx)
        ctx.weight_bytes.append(self._op.nbytes)
        matrix.deliver(ctx, self._op.load)

    def __call__(self, x: Tensor | Quantised) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features], each this rank's part."""
        y = self._op(x)
        return y if self._sum is None else self._sum(y, y)


def takes_quantised(op: object) -> bool:
    """Tell whether an operation takes what the one before it has quantised."""
    return bool(getattr(op, "takes_quantised", False))
