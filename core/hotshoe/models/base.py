"""The model interface: embed, forward, head."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.models.config import ModelConfig

#: What a model can be asked for: the next token of a text, or one vector of it.
GENERATE, EMBED = "generate", "embed"


class Model(Protocol):
    """A causal language model, built and loaded.

    Attributes:
        vocab_size: Token ids lie below it; also the width of the logits.
        hidden_size: Width of the hidden states.
        tasks: Those that `head` serves.
    """

    vocab_size: int
    hidden_size: int
    tasks: frozenset[str]

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input [num_tokens, hidden_size] of the first layer for ids [num_tokens].

        A model may append columns of its own, which `forward` gets back with the others.
        """
        ...

    def scale_embeddings(self, rows: Tensor) -> Tensor:
        """Scale rows [n, hidden_size] of the embedding's table as `embed` scales those it reads."""
        ...

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Run the layers.

        Args:
            hidden: [num_tokens, hidden_size] from `embed`; may be overwritten.
            batch: The step.

        Returns:
            The final normed hidden states [s, hidden_size] of the tokens at `batch.outputs_at` (of
            all, if None). The KV cache is written for all tokens.
        """
        ...

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Map hidden [n, hidden_size] to a task's result, a new tensor in float32.

        Returns:
            Logits [n, vocab_size] for "generate", vectors [n, hidden_size] for "embed".
        """
        ...


class ModelBuilder(Protocol):
    """What hook `hotshoe_models` names: makes a model whose weights are still to be loaded."""

    def __call__(self, config: ModelConfig, ctx: BuildContext) -> Model:
        """Build the layers, which choose their operations and register their weights with `ctx`.

        Raises:
            CheckpointError: The configuration is incomplete or asks for something unknown.
        """
        ...
