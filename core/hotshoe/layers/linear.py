"""Linear layer: one or several checkpoint matrices, stacked by rows, behind slot `linear`.

With tensor parallelism a layer is split by its outputs (rows of W; each rank computes a part of
y) or by its inputs (columns of W; each rank computes a summand of y, and the ranks add up).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Split
from hotshoe.slots import LinearOp, LinearSpec, Quantised


class Linear:
    """y = x W^T + b, W stacked from parts such as q, k and v.

    Args:
        ctx: The build context.
        parts: Checkpoint prefixes and their output sizes, in row order.
        in_features: Input size.
        bias: The parts have biases.
        out_dtype: Output type, when not the model's.
        quantize: False keeps the layer out of quantisation, as model data demands.
        outputs: This rank's part of the stacked rows; None for all.
        inputs: This rank's part of x; the ranks' results are then added. None for all.
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
        outputs: Split | None = None,
        inputs: Split | None = None,
    ) -> None:
        weight, activation = (
            ctx.quantization.operands(parts[0][0])
            if ctx.quantization is not None and quantize
            else (None, None)
        )
        total = sum(size for _, size in parts)
        outputs = outputs or Split(((0, total),))
        adds = inputs is not None and ctx.communicator is not None
        inputs = inputs or Split(((0, in_features),))
        spec = LinearSpec(
            inputs.size,
            outputs.size,
            ctx.dtype,
            bias=bias and (ctx.rank == 0 or not adds),  # added once
            weight=weight,
            activation=activation,
            out_dtype=out_dtype,
        )
        self._op: LinearOp = ctx.selector.choose("linear", spec)
        #: How the layer before may quantise what it hands over; None for not at all.
        self.input_quant = activation if getattr(self._op, "takes_quantised", False) else None
        self._sum = ctx.communicator.all_reduce if adds and ctx.communicator else None
        [self._columns] = inputs.within(0, in_features)
        ctx.weight_bytes.append(self._op.nbytes)
        self._pending: dict[str, list[list[Tensor] | None]] = {"weight": [None] * len(parts)}
        if spec.bias:
            self._pending["bias"] = [None] * len(parts)
        begin = 0
        for i, (name, size) in enumerate(parts):
            rows, begin = outputs.within(begin, begin + size), begin + size
            padding = outputs.padding if i + 1 == len(parts) else 0
            shapes = {"weight": (size, in_features)} | ({"bias": (size,)} if bias else {})
            for kind, shape in shapes.items():
                sink = partial(self._take, kind, i, rows, padding)
                ctx.weights.expect(f"{name}.{kind}", shape, sink)

    def _take(
        self, kind: str, index: int, rows: Sequence[slice], padding: int, tensor: Tensor
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
            self._op.load({k: [t for part in parts for t in part] for k, parts in complete.items()})
            for parts in self._pending.values():
                parts[:] = [None] * len(parts)

    def __call__(self, x: Tensor | Quantised) -> Tensor:
        """Map [num_tokens, in_features] to [num_tokens, out_features], each this rank's part."""
        y = self._op(x)
        return y if self._sum is None else self._sum(y, y)
