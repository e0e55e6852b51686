"""The task beside generation: one vector of a whole prompt instead of its continuation."""

from dataclasses import dataclass, replace
from typing import Literal

from hotshoe.errors import RequestError

PoolingKind = Literal["last", "mean"]
POOLING_KINDS = ("last", "mean")


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a model makes one vector of a prompt's final hidden states.

    Attributes:
        kind: "last" takes the last token's, "mean" the mean over all tokens in float32.
        normalize: The vector is divided by its Euclidean length.
        dimensions: The vector keeps so many leading entries before it is normalized; None keeps
            all. Source: Matryoshka representations, arXiv:2205.13147.
    """

    kind: PoolingKind
    normalize: bool = True
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """A request for a vector; None leaves a choice to the model.

    Attributes:
        dimensions: See `Pooling`.
        normalize: See `Pooling`.

    Raises:
        RequestError: A value is of the wrong type or out of range; `field` names it.
    """

    dimensions: int | None = None
    normalize: bool | None = None

    def __post_init__(self) -> None:
        size = self.dimensions
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise RequestError(
                f"dimensions must be an integer of at least 1, not {size!r}", "dimensions"
            )
        if not isinstance(self.normalize, bool | None):
            raise RequestError(
                f"normalize must be true or false, not {self.normalize!r}", "normalize"
            )

    def over(self, model: Pooling, hidden_size: int) -> Pooling:
        """Return the model's pooling with the choices of this request.

        Raises:
            RequestError: The vector has fewer entries than were asked for.
        """
        if self.dimensions is not None and self.dimensions > hidden_size:
            raise RequestError(
                f"dimensions is {self.dimensions}, but this model's vectors have {hidden_size}",
                "dimensions",
            )
        normalize = model.normalize if self.normalize is None else self.normalize
        return replace(model, normalize=normalize, dimensions=self.dimensions)
