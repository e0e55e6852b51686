"""Classes of texts: what a model has, and what callers get."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import countOf

from hotshoe.types.pooling import Activation, Pooling, PoolingKind


@dataclass(frozen=True, slots=True)
class Classifier:
    """What the vectors of a model with a head for classes mean.

    Attributes:
        labels: Name of each class, in the order of the vector's entries.
        activation: See `Pooling`; None where the logits themselves are the answer, as of rewards.
        separated: Of a pair of texts, the tokenizer's template says what stands between them;
            otherwise one follows the other at once.
        kind: Which state of a text the head reads; of a decoder the last, which has seen all.
        step_token: The token that ends a step of a solution, where classes of tokens are those of
            such steps alone; None where every token has one.
    """

    labels: tuple[str, ...]
    activation: Activation | None = None
    separated: bool = True
    kind: PoolingKind = "last"
    step_token: int | None = None

    @property
    def scores_pairs(self) -> bool:
        """Whether it reads two texts at once, and says in one number how well they match."""
        return len(self.labels) == 1

    def pooling(self) -> Pooling:
        """Return how the vectors are made."""
        return Pooling(self.kind, normalize=False, task="classify", activation=self.activation)

    def token_pooling(self) -> Pooling:
        """Return how the classes of tokens are made."""
        return Pooling(
            "all",
            normalize=False,
            task="token_classify",
            activation=self.activation,
            step_token=self.step_token,
        )

    def count_classified(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens of a prompt have classes."""
        return len(token_ids) if self.step_token is None else countOf(token_ids, self.step_token)


@dataclass(slots=True)
class TokenVectors:
    """What a model makes of every token of a prompt, or of those that end a step.

    Attributes:
        vectors: Of each token, in order: an embedding, or probabilities of classes, or logits. Of a
            process reward model, of each of its step tokens (`Classifier.step_token`).
        labels: The likeliest class of each of them; None for embeddings.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    vectors: list[list[float]]
    labels: list[str] | None = None


@dataclass(slots=True)
class ClassOutput:
    """What class a prompt is of.

    Attributes:
        label: Name of the likeliest class.
        probs: Probability of each class; logits where the model or the request wants these.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    label: str
    probs: list[float]
