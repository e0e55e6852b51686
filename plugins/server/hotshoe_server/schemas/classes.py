"""Requests and answers of `/classify` and `/pooling`, in vLLM's form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from hotshoe.types import PoolingParams
from hotshoe.types.pooling import PoolingTask
from hotshoe_server.schemas.embeddings import PooledUsage, TextRequest, VectorForm


class ClassifyRequest(TextRequest):
    """Texts whose classes are asked for."""

    PREFIX: ClassVar[str] = "classify"

    use_activation: bool | None = None

    def params(self) -> PoolingParams:
        """Return what the engine takes."""
        return PoolingParams(task="classify", use_activation=self.use_activation)


class Found(Struct):
    """The likeliest class of a text, and the probability of each."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(Struct, tag="list", tag_field="object"):
    """A class for each text, in order."""

    id: str
    created: int
    model: str
    data: list[Found]
    usage: PooledUsage


#: Which task is meant where a model has several.
ORDER: tuple[PoolingTask, ...] = ("embed", "classify", "token_classify", "token_embed")


class PoolingRequest(VectorForm):
    """Texts of which the model makes what it can."""

    PREFIX: ClassVar[str] = "pool"

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None

    def params(self, tasks: Collection[str]) -> PoolingParams:
        """Return what the engine takes; a request without a task asks for the first of them that
        the model has.

        Args:
            tasks: Of the model.

        Raises:
            RequestError: A value is out of range, or of no use to the task.
        """
        task = self.task or next((one for one in ORDER if one in tasks), "embed")
        if task.endswith("embed"):
            return PoolingParams(self.dimensions, self.normalized(), task)
        return PoolingParams(self.dimensions, self.normalize, task, self.use_activation)


class Pooled(Struct, tag="pooling", tag_field="object"):
    """What was made of one text: numbers, or base64 of their little-endian float32; a list of
    numbers for each token where that is the task."""

    index: int
    data: Sequence[float | list[float]] | str


class PoolingAnswer(Struct, tag="list", tag_field="object"):
    """What was made of each text, in order."""

    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: PooledUsage
