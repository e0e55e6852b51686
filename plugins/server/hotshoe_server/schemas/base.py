"""What every request object obeys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from hotshoe.errors import RequestError
from hotshoe.types import BeamSearchParams

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


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks for beside the engine's parameters.

    Attributes:
        request_id: What the client calls it.
        cache_salt: Who else gives it shares a prefix cache.
        beam_search: How to search; None where tokens are sampled.
        no_spaces: Special tokens are shown, without spaces that a tokenizer puts between them.
        max_tokens_field: Which field says how many tokens are wanted at most, if one does.
        max_tokens: What it says.
        prompt_tokens: How many of the prompt's tokens to keep; -1 keeps what has room.
        keeps_end: Of the prompt, rather than its beginning.
    """

    request_id: str | None = None
    cache_salt: str | None = None
    beam_search: BeamSearchParams | None = None
    no_spaces: bool = False
    max_tokens_field: str | None = None
    max_tokens: int | None = None
    prompt_tokens: int | None = None
    keeps_end: bool = True


#: Those that grammars are made of, the one that wins first.
GRAMMAR_FIELDS = "structured_outputs response_format text output_config format tools".split()


class Schema(BaseModel):
    """A JSON object: no unknown name, no conversion between types, finite numbers.

    What `hotshoe_server.generation` asks of any body has an answer here for those without wishes.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    def wishes(self) -> Wishes:
        """Return what this request asks for beside the engine's parameters."""
        return Wishes()

    def renamed(self, error: RequestError) -> RequestError:
        """Return an error of the engine's with the name that the field has in this request."""
        return error

    @property
    def grammar_field(self) -> str | None:
        """Which field the grammar was made from."""
        given = vars(self)
        return next((name for name in GRAMMAR_FIELDS if given.get(name) is not None), None)
