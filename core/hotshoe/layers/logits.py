"""The output matrix: hidden states to logits over the whole vocabulary, on every rank.

With tensor parallelism each rank computes its part of the vocabulary, padded to equal parts, and
the ranks gather them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.linear import Linear, Matrix
from hotshoe.layers.split import split_padded


class Logits:
    """logits = hidden W^T + b in float32.

    Args:
        ctx: The build context.
        name: Checkpoint prefix; with tied weights that of the embedding.
        vocab_size, hidden_size: Shape of the matrix.
        quantize: False keeps it out of quantization.
        bias: There is a b.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        vocab_size: int,
        hidden_size: int,
        *,
        quantize: bool = False,
        bias: bool = False,
    ) -> None:
        self._vocab_size = vocab_size
        outputs = split_padded(vocab_size, ctx.rank, ctx.size)
        parts = [(name, vocab_size)]
        matrix = Matrix(ctx, parts, hidden_size, bias=bias, quantize=quantize, outputs=outputs)
        self._linear = Linear(ctx, matrix, out_dtype="float32")
        self._communicator, self._size = ctx.communicator, ctx.size

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [n, hidden_size] to [n, vocab_size] float32, a new tensor."""
        logits = self._linear(hidden)
        if self._communicator is None:
            return logits
        parts = self._communicator.all_gather(logits).view(self._size, *logits.shape)
        ends = range(self._vocab_size, 0, -logits.shape[1])
        return torch.cat([part[:, :end] for part, end in zip(parts, ends, strict=False)], dim=1)
