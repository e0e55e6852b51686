"""From what a request says about the form of its text to the engine's `GrammarSpec`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe_server.schemas.base import Schema

MAX_CHOICES = 4096


class StructuredOutputs(Schema):
    """vLLM's field `structured_outputs`: exactly one form."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = Field(None, max_length=MAX_CHOICES, fail_fast=True)
    grammar: str | None = None
    structural_tag: dict[str, Any] | str | None = None
    disable_any_whitespace: bool = False
    #: Ours: what comes before the form, and whether a schema that nobody serves is refused.
    after: list[list[int]] = Field(default_factory=list, max_length=16, fail_fast=True)
    strict: bool = True

    def spec(self, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Return the engine's form.

        Raises:
            RequestError: None or several forms are given, or one is malformed.
        """
        given = {
            name: value
            for name, value in self.model_dump(by_alias=True).items()
            if name in _FORMS and value is not None and value is not False
        }
        if len(given) != 1:
            names = ", ".join(_FORMS)
            raise RequestError(
                f"structured_outputs takes exactly one of {names}", "structured_outputs"
            )
        [(name, value)] = given.items()
        spec: GrammarSpec
        after = self.after or after
        spec = (
            GrammarSpec.json_object(after) if name == "json_object" else _FORMS[name](value, after)
        )
        if not self.strict:
            spec = replace(spec, strict=False)
        return replace(spec, max_blanks=0) if self.disable_any_whitespace else spec


_FORMS: dict[str, Any] = {
    "json": GrammarSpec.json_schema,
    "json_object": GrammarSpec.json_object,
    "regex": GrammarSpec.regex,
    "choice": GrammarSpec.choice,
    "grammar": GrammarSpec.ebnf,
    "structural_tag": GrammarSpec.structural_tag,
}


class TextFormat(Schema):
    """Free text."""

    type: Literal["text"]


class JsonObjectFormat(Schema):
    """Any JSON object."""

    type: Literal["json_object"]

    def spec(self, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Return the engine's form."""
        return GrammarSpec.json_object(after)


class JsonSchema(Schema):
    """A named schema."""

    name: str = Field(max_length=256)
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None

    def spec(self, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Return the engine's form; a format without a schema is any JSON object."""
        if self.schema_ is None:
            return GrammarSpec.json_object(after)
        spec = GrammarSpec.json_schema(self.schema_, after)
        return spec if self.strict is not False else replace(spec, strict=False)


class JsonSchemaFormat(Schema):
    """Chat's form: the schema in an object of its own."""

    type: Literal["json_schema"]
    json_schema: JsonSchema

    def spec(self, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Return the engine's form."""
        return self.json_schema.spec(after)


class StructuralTagFormat(Schema):
    """Text with sections between tags that follow schemas; further fields are its description."""

    model_config = ConfigDict(extra="allow")

    type: Literal["structural_tag"]

    def spec(self, after: Iterable[Sequence[int]] = ()) -> GrammarSpec:
        """Return the engine's form."""
        return GrammarSpec.structural_tag(self.model_dump(), after)


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat,
    Field(discriminator="type"),
]
