"""The tasks beside generation: one vector of a whole prompt instead of its continuation."""

from dataclasses import dataclass, replace
from typing import Literal

from hotshoe.errors import RequestError

PoolingKind = Literal["last", "mean", "cls", "max", "weighted_mean", "mean_sqrt_len", "all"]
POOLING_KINDS = ("last", "mean", "cls", "max", "weighted_mean", "mean_sqrt_len")
PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]
POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
Activation = Literal["softmax", "sigmoid"]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a model makes one vector of a prompt's final hidden states.

    Attributes:
        task: Which of the model's heads makes it.
        kind: The "last" token, the first ("cls"), means in float32, the "max", or "all" apart.
        normalize: The vector is divided by its Euclidean length.
        dimensions: The vector keeps so many leading entries before it is normalized; None keeps
            all. Source: Matryoshka representations, arXiv:2205.13147.
        activation: What is applied to the vector at the end; None for nothing.
        step_token: Of "all", only the states of this token are taken; None takes every one.
    """

    kind: PoolingKind
    normalize: bool = True
    dimensions: int | None = None
    task: PoolingTask = "embed"
    activation: Activation | None = None
    step_token: int | None = None


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """A request for a vector; None leaves a choice to the model.

    Attributes:
        dimensions, normalize: See `Pooling`; of embeddings alone.
        task: "embed" or "classify", for probabilities; the others for each token.
        use_activation: False gives logits in place of probabilities; of classes alone.

    Raises:
        RequestError: A value is of the wrong type or out of range; `field` names it.
    """

    dimensions: int | None = None
    normalize: bool | None = None
    task: PoolingTask = "embed"
    use_activation: bool | None = None

    def __post_init__(self) -> None:
        if (size := self.dimensions) is not None and (type(size) is not int or size < 1):
            raise RequestError(f"dimensions must be an integer above 0, not {size!r}", "dimensions")
        for name in ("normalize", "use_activation"):
            if not isinstance(value := getattr(self, name), bool | None):
                raise RequestError(f"{name} must be true or false, not {value!r}", name)
        if self.task not in POOLING_TASKS:
            raise RequestError(f"task must be one of {POOLING_TASKS}, not {self.task!r}", "task")
        embeds = self.task.endswith("embed")
        for name in ("use_activation",) if embeds else ("dimensions", "normalize"):
            if getattr(self, name) is not None:
                raise RequestError(f"{name} means nothing to task {self.task!r}; omit it", name)

    def over(self, model: Pooling, hidden_size: int) -> Pooling:
        """Return the model's pooling for this task with the choices of this request.

        Raises:
            RequestError: The vector has fewer entries than were asked for.
        """
        if self.task.endswith("classify"):
            return replace(model, activation=None) if self.use_activation is False else model
        if self.dimensions is not None and self.dimensions > hidden_size:
            why = f"dimensions is {self.dimensions}, but this model's vectors have {hidden_size}"
            raise RequestError(why, "dimensions")
        normalize = model.normalize if self.normalize is None else self.normalize
        return replace(model, normalize=normalize, dimensions=self.dimensions)
