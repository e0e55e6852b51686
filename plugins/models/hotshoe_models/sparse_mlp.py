"""A gated MLP most of whose channels stay closed: those whose gate is below a threshold."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor

from hotshoe.layers import BuildContext, GatedActivation, Linear, Matrix
from hotshoe.slots import Quantized


class SparseMLP:
    """down(act(relu(gate - threshold)) * up), gate | up = gate_up(x).

    The threshold is that of a normal distribution with mean and deviation of a token's gates, over
    all ranks. Source: Gemma 3n's configuration and weights.

    Args:
        ctx: The build context.
        gate_up, down: The weights.
        activation: "silu", "gelu" or "gelu_tanh".
        sparsity: Share of the channels below the threshold, between 0 and 1.
        channels: Between the matrices, of all ranks.

    Attributes:
        input_quant: See `hotshoe.layers.GatedMLP`.
    """

    def __init__(
        self,
        ctx: BuildContext,
        gate_up: Matrix,
        down: Matrix,
        activation: str,
        sparsity: float,
        channels: int,
    ) -> None:
        self._width, self._channels = down.spec.in_features, channels
        self._deviations = NormalDist().inv_cdf(sparsity)
        self._sum = ctx.communicator.all_reduce if ctx.communicator is not None else None
        self._up, self._down = Linear(ctx, gate_up), Linear(ctx, down)
        self._act = GatedActivation(ctx, self._width, activation, self._down.input_quant)
        self.input_quant = self._up.input_quant

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        """Map [num_tokens, hidden_size] to the same shape."""
        both = self._up(x)
        gates = both[:, : self._width].float()
        mean = self._mean(gates)
        deviation = self._mean((gates - mean).square()).sqrt()
        both[:, : self._width] = (gates - mean - deviation * self._deviations).relu_()
        return self._down(self._act(both))

    def _mean(self, values: Tensor) -> Tensor:
        """Return [num_tokens, 1], the mean over the channels of all ranks."""
        total = values.sum(-1, keepdim=True)
        return (total if self._sum is None else self._sum(total)) / self._channels
