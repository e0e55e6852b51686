"""MLPs. A gated one is one operation of slot `gated_mlp` where someone serves the whole block, else
three; a plain one is two matrix products with an activation between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hotshoe.layers.activation import GatedActivation
from hotshoe.layers.context import BuildContext
from hotshoe.layers.linear import Linear, input_quant_of
from hotshoe.layers.matrix import Matrix
from hotshoe.slots import GatedMlpOp, GatedMlpSpec, Quantized
from hotshoe.slots.reference.activation import ACTIVATIONS, squared_relu

#: Activations of a plain MLP: those of gates, and two more.
PLAIN_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "relu": torch.relu,
    "relu2": squared_relu,
}


class GatedMLP:
    """down(act(gate) * up), gate | up = gate_up(x).

    Args:
        ctx: The build context.
        gate_up, down: The weights.
        activation: "silu", "gelu" or "gelu_tanh".
        between: Changes gate | up [num_tokens, 2 * size] in place before the activation; with it
            the block is composed.

    Attributes:
        input_quant: How the layer before may quantize what it hands over; None for not at all.
    """

    def __init__(
        self,
        ctx: BuildContext,
        gate_up: Matrix,
        down: Matrix,
        activation: str,
        between: Callable[[Tensor], None] | None = None,
    ) -> None:
        spec = GatedMlpSpec(gate_up.spec, down.spec, activation)
        op: GatedMlpOp | None = None
        adapted = [part.takes_adapters(ctx) for part in (gate_up, down)]  # between its parts
        if between is None and not any(adapted):
            op = ctx.operation("gated_mlp", spec, gate_up.names + down.names)
        self._sum = None
        self._run: Callable[[Tensor | Quantized], Tensor]
        if op is None:
            first, second = Linear(ctx, gate_up), Linear(ctx, down)
            act = GatedActivation(ctx, down.spec.in_features, activation, second.input_quant)
            self.input_quant = first.input_quant

            def run(x: Tensor | Quantized) -> Tensor:
                both = first(x)
                if between is not None:
                    between(both)
                return second(act(both))

            self._run = run
        else:
            self.input_quant = input_quant_of(gate_up.spec, op)
            self._run, self._sum = op, down.sum_of(ctx)
            ctx.weight_bytes.append(op.nbytes)
            holder = gate_up.holder(ctx, "gated_mlp", spec, op)
            gate_up.deliver(ctx, op.load_gate_up, holder, "gate_up.")
            down.deliver(ctx, op.load_down, holder, "down.")

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, hidden_size] to the same shape."""
        y = self._run(x)
        return y if self._sum is None else self._sum(y, y)


class PlainMLP:
    """down(act(up(x))).

    The activation is one call of PyTorch, which every device has: there is nothing to fuse it with.

    Args:
        ctx: The build context.
        up, down: The weights.
        activation: A name in `PLAIN_ACTIVATIONS`, or a function that maps a tensor to its shape.

    Attributes:
        input_quant: See `GatedMLP`.
    """

    def __init__(
        self,
        ctx: BuildContext,
        up: Matrix,
        down: Matrix,
        activation: str | Callable[[Tensor], Tensor],
    ) -> None:
        self._up, self._down = Linear(ctx, up), Linear(ctx, down)
        if isinstance(activation, str):
            activation = PLAIN_ACTIVATIONS[activation]
        self._activation = activation
        self.input_quant = self._up.input_quant

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, hidden_size] to the same shape."""
        return self._down(self._activation(self._up(x)))
