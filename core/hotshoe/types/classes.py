"""Classes of texts: what a model has, and what callers get."""

from dataclasses import dataclass

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
    """

    labels: tuple[str, ...]
    activation: Activation | None = None
    separated: bool = True
    kind: PoolingKind = "last"

    @property
    def scores_pairs(self) -> bool:
        """Whether it reads two texts at once, and says in one number how well they match."""
        return len(self.labels) == 1

    def pooling(self) -> Pooling:
        """Return how the vectors are made."""
        return Pooling(self.kind, normalize=False, task="classify", activation=self.activation)


@dataclass(slots=True)
class TokenVectors:
    """What a model makes of every token of a prompt.

    Attributes:
        vectors: Of each token, in order: an embedding, or probabilities of classes, or logits.
        labels: The likeliest class of each token; None for embeddings.
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
