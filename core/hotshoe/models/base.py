"""The model interface: embed, forward, head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch
from hotshoe.layers.cache import CacheLayer
from hotshoe.models.config import ModelConfig
from hotshoe.types.pooling import PoolingKind
from hotshoe.types.trees import DraftTree

#: What a model can be asked for: the next token of a text, one vector of it, or its class.
GENERATE, EMBED, CLASSIFY = "generate", "embed", "classify"
#: Vectors or classes of every token, which models can be asked for that take whole prompts.
TOKEN_EMBED, TOKEN_CLASSIFY = "token_embed", "token_classify"


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
            Logits [n, vocab_size] for "generate", vectors [n, hidden_size] for "embed" and
            "token_embed", logits [n, classes] for "classify" and "token_classify".
        """
        ...


@runtime_checkable
class WideModel(Protocol):
    """What a model has beside the above if the stage before it hands on more than hidden states.

    Attributes:
        entering_size: Columns of what arrives: hidden states, then what a head reads.
    """

    entering_size: int


@runtime_checkable
class ClassifyingModel(Protocol):
    """What a model has beside the above if its head for classes reads another state than the last.

    Attributes:
        class_pooling: Which.
    """

    class_pooling: PoolingKind


@runtime_checkable
class SteppedModel(Protocol):
    """What a model has beside the above if its classes of tokens are those of steps.

    Attributes:
        step_token: The token that ends a step; None where every token has a class.
    """

    step_token: int | None


def class_pooling(model: Model) -> PoolingKind:
    """Return which state of a text a model's head for classes reads."""
    return model.class_pooling if isinstance(model, ClassifyingModel) else "last"


def step_token(model: Model) -> int | None:
    """Return the token that ends a step, where classes of tokens are those of steps."""
    return model.step_token if isinstance(model, SteppedModel) else None


class DraftHead(Protocol):
    """Layers that guess further tokens from a model's hidden states; they have caches of their own.

    At position p a head reads the hidden state of token p and the token p + 1, and guesses token
    p + 2. Its caches hold what it made of every position before. Wrong guesses cost time alone.

    Attributes:
        cache_layers: Those layers of `BuildContext.cache_layers` that are its own.
    """

    cache_layers: Sequence[CacheLayer]

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Run the layers.

        Args:
            ids: [n] int32, the token behind each position.
            hidden: What `Model.forward` returned at these positions, [n, hidden_size] or as many
                columns more as the model appends for the head; or [n, hidden_size] that this
                method returned one position before, as far as drafts follow each other.
            batch: The step, whose `outputs_at` says for which positions results are wanted.

        Returns:
            What the next position may read, and what `guess` takes, each [s, hidden_size].
        """
        ...

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens of the model, [n] integers, for hidden [n, hidden_size].

        A head that guesses several tokens at once returns [n, k], and is asked once for a step.
        """
        ...


@runtime_checkable
class DeepHead(DraftHead, Protocol):
    """A head of several layers, of which the k-th guesses the k-th draft of a chain.

    This one is the first. At position p, each of the others reads what the layer before it returned
    at p - 1, and the token p + 1. So it guesses token p + 2, too, and further ahead of the model's
    states than the layer before it. Drafts beyond the last layer are its own, from its own results.

    Attributes:
        following: The others, heads of their own with their own caches; empty for none.
    """

    following: Sequence[DraftHead]


@runtime_checkable
class ReadingHead(DraftHead, Protocol):
    """A head without caches of its own that reads the model's.

    `forward` gets single tokens: of the last token p that is right, the token p + 1 and the hidden
    state of p, then for each further draft that draft and what `forward` returned for it. Views end
    with p each time, and positions are p.

    Attributes:
        reads: Layers of the model whose caches it reads.
    """

    reads: Sequence[CacheLayer]


@runtime_checkable
class TreeHead(DraftHead, Protocol):
    """A head whose guesses may be a tree: `guess` then returns [n, k], the token of each node.

    Attributes:
        tree: The shape of its guesses; None for a chain.
    """

    tree: DraftTree | None


@runtime_checkable
class LevelHead(DraftHead, Protocol):
    """A head that guesses several tokens behind one, so that trees grow level by level."""

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """Return the likeliest tokens [n, count], the likeliest first; see `guess`."""
        ...


@runtime_checkable
class DraftingModel(Protocol):
    """What a model has beside the above if `BuildContext.further` asked for it, or a `HeadBuilder`
    has made it.

    A model with a head may append columns to what `forward` returns; `head` then leaves them out.

    Attributes:
        draft_head: Layers that predict further tokens; None where its checkpoint has none, and in
            stages before the last, which has the final states.
    """

    draft_head: DraftHead | None


class ModelBuilder(Protocol):
    """What hook `hotshoe_models` names: makes a model whose weights are still to be loaded."""

    def __call__(self, config: ModelConfig, ctx: BuildContext) -> Model:
        """Build the layers, which choose their operations and register their weights with `ctx`.

        Raises:
            CheckpointError: The configuration is incomplete or asks for something unknown.
        """
        ...


class HeadBuilder(Protocol):
    """What hook `hotshoe_heads` names: gives a model a head that lies in a directory of its own."""

    def __call__(
        self, config: ModelConfig, ctx: BuildContext, model: Model, target: ModelConfig
    ) -> DraftingModel:
        """Build the head's layers, which register their weights with `ctx`.

        Called in every stage. Those before the last build no head. Where it reads states of their
        layers, they append them to what `forward` returns; a model that gets such columns from the
        stage before is a `WideModel`.

        Args:
            config: Of the head's directory.
            ctx: Of the model, with a weight table for the head alone.
            model: Built, not loaded.
            target: The model's own configuration.

        Returns:
            The model with its head.

        Raises:
            ConfigError: The head does not fit the model.
            CheckpointError: The configuration is incomplete or asks for something unknown.
        """
        ...


@runtime_checkable
class TappedModel(DraftingModel, Protocol):
    """A model whose head reads states of every token, but the final ones of none: `forward` returns
    a row for every token, and final states in the rows at `outputs_at` alone.

    Attributes:
        tapped: Layers in front of which those states are.
    """

    tapped: Sequence[int]
