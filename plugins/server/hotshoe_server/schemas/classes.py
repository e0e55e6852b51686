"""Requests and answers of `/classify` and `/pooling`, in vLLM's form."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from msgspec import Struct

from hotshoe.types import PoolingParams
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


class PoolingRequest(VectorForm):
    """Texts of which the model makes what it can."""

    PREFIX: ClassVar[str] = "pool"

    task: Literal["embed", "classify"] | None = None

    def params(self, tasks: Collection[str]) -> PoolingParams:
        """Return what the engine takes; a request without a task asks for vectors if it can.

        Args:
            tasks: Of the model.

        Raises:
            RequestError: A value is out of range, or of no use to the task.
        """
        task = self.task or ("embed" if "embed" in tasks or "classify" not in tasks else "classify")
        if task == "embed":
            return PoolingParams(self.dimensions, self.normalized())
        return PoolingParams(self.dimensions, self.normalize, "classify", self.use_activation)


class Pooled(Struct, tag="pooling", tag_field="object"):
    """What was made of one text: numbers, or base64 of their little-endian float32."""

    index: int
    data: list[float] | str


class PoolingAnswer(Struct, tag="list", tag_field="object"):
    """What was made of each text, in order."""

    id: str
    created: int
    model: str
    data: list[Pooled]
    usage: PooledUsage
