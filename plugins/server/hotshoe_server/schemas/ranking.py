"""Requests and answers of `/score` and `/rerank`, in vLLM's form, as Jina has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import UNSET, Struct, UnsetType
from pydantic import Field, Tag

from hotshoe.errors import RequestError
from hotshoe_server.schemas.base import ByKind, Schema, ShortList, Texts
from hotshoe_server.schemas.embeddings import MAX_INPUTS, PooledRequest, PooledUsage


class Document(Schema):
    """A text, as an object."""

    text: str


class PairRequest(PooledRequest):
    """What requests about pairs of texts have."""

    PREFIX: ClassVar[str] = "score"

    use_activation: bool | None = None


class ScoreRequest(PairRequest):
    """Texts that are compared: one with each of several, or each with its counterpart."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The fields that have the texts of both sides."""
        left = "queries" if self.text_1 is None else "text_1"
        return left, "documents" if self.text_2 is None else "text_2"

    def pairs(self) -> tuple[list[str], list[str]]:
        """Return the texts of each side, equally many of both, or one on the first.

        Raises:
            RequestError: A side is missing, empty, too long or has two names, or they do not fit.
        """
        left = _one_of("text_1", self.text_1, "queries", self.queries)
        right = _one_of("text_2", self.text_2, "documents", self.documents)
        name, _ = self.names
        if len(left) not in (1, len(right)):
            raise RequestError(
                f"{name} has {len(left)} texts, the other side {len(right)}; give one, or as many",
                name,
            )
        return left, right


class RerankRequest(PairRequest):
    """Documents that are ordered by how close they are to a query."""

    query: str
    documents: ShortList[
        Annotated[Annotated[str, Tag("text")] | Annotated[Document, Tag("object")], ByKind]
    ]
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool = True

    def texts(self) -> list[str]:
        """Return the texts of the documents.

        Raises:
            RequestError: There are none, or too many.
        """
        found = [one if isinstance(one, str) else one.text for one in self.documents]
        return _counted("documents", found)


def _one_of(
    name: str, value: str | list[str] | None, other: str, same: str | list[str] | None
) -> list[str]:
    if (value is None) == (same is None):
        fault = "missing parameter" if value is None else "give one of the two names"
        raise RequestError(f"{fault}: {name}, or {other}", name)
    name, found = (name, value) if value is not None else (other, same)
    return _counted(name, [found] if isinstance(found, str) else list(found or ()))


def _counted(name: str, texts: list[str]) -> list[str]:
    if 0 < len(texts) <= MAX_INPUTS:
        return texts
    raise RequestError(f"{name} has {len(texts)} texts; give 1 to {MAX_INPUTS}", name)


class Score(Struct, tag="score", tag_field="object"):
    """How close the texts of a pair are, by a model of pairs or by the cosine of their vectors."""

    index: int
    score: float


class ScoreAnswer(Struct, tag="list", tag_field="object"):
    """A score for each pair, in order."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage


class RankedText(Struct):
    """The text of a document."""

    text: str


class Ranked(Struct):
    """One document: its place in the request, and how close it is to the query."""

    index: int
    relevance_score: float
    document: RankedText | UnsetType = UNSET


class RerankAnswer(Struct):
    """The documents, the closest first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage


def ranked(scores: Sequence[float], texts: Sequence[str], body: RerankRequest) -> list[Ranked]:
    """Return the documents that are wanted, the closest first; equally close ones as they came."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n or None]
    return [
        Ranked(i, scores[i], RankedText(texts[i]) if body.return_documents else UNSET)
        for i in order
    ]
