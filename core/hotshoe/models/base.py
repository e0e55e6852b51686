"""The model interface: hidden states from a batch, logits from hidden states."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.models.config import ModelConfig


class Model(Protocol):
    """A causal language model, built and loaded."""

    vocab_size: int

    def forward(self, batch: ForwardBatch) -> Tensor:
        """Return the final normed hidden states [s, hidden_size] of the tokens at
        `batch.outputs_at` (of all, if None); writes the KV cache for all tokens."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [n, vocab_size] float32, a new tensor, for hidden [n, hidden_size]."""
        ...


class ModelBuilder(Protocol):
    """What hook `hotshoe_models` names: makes a model whose weights are still to be loaded."""

    def __call__(self, config: ModelConfig, ctx: BuildContext) -> Model:
        """Build the layers, which choose their operations and register their weights with `ctx`.

        Raises:
            CheckpointError: The configuration is incomplete or asks for something unknown.
        """
        ...
