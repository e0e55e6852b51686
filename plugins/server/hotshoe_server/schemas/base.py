"""What every request object obeys."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from hotshoe.errors import RequestError

T = TypeVar("T")
MAX_ITEMS = 65536
MAX_ENTRIES = 1024

#: A list that stops at its first mistake, so that a long bad one costs little.
ShortList = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]


def _kind(value: object) -> str:
    """Tell JSON types apart: of what is read, and of models when they are written again."""
    if isinstance(value, (dict, BaseModel)):
        return "object"
    return "list" if isinstance(value, list) else "text"


#: Tells the alternatives of a field apart first, so that a mistake within one is named.
ByKind = Discriminator(_kind)
#: Text or several.
Texts = Annotated[Annotated[str, Tag("text")] | Annotated[ShortList[str], Tag("list")], ByKind]


def _bounded(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_ENTRIES:
        raise RequestError(f"an object may have {MAX_ENTRIES} entries here, no more")
    return value


#: Entries of an object are counted first, as each bad one would cost a message.
Few = BeforeValidator(_bounded)
#: Variables of a chat template.
Variables = Annotated[dict[str, str | bool | int | float | None] | None, Few]
#: Names and short values that mean nothing here.
Metadata = Annotated[dict[str, str] | None, Few]
ShortText = Annotated[str, Field(max_length=1024)]


class Schema(BaseModel):
    """A JSON object: no unknown name, no conversion between types, finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)
