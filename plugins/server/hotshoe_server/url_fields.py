"""Fields of a body that stand in the URL, where vLLM's clients write those of admin verbs."""

from __future__ import annotations

import re

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json
from starlette.datastructures import QueryParams

from hotshoe.errors import RequestError


def with_fields(body: bytes, fields: QueryParams, model: type[BaseModel]) -> bytes:
    """Return a body with the fields that stand in the URL: as text, where the model takes text.

    Raises:
        RequestError: One stands in the body as well.
    """
    try:
        found = from_json(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        return body  # `validated` says what is wrong with it
    for name in fields:
        if name in found:
            raise RequestError(f"{name} stands in the URL and in the body; give it once", name)
        texts = fields.getlist(name)
        found[name] = texts if len(texts) > 1 else texts[0]
    try:
        model.model_validate_json(to_json(found))
    except ValidationError as error:  # `validated` says what is wrong with other values
        refused = {place["loc"][0] for place in error.errors(include_url=False) if place["loc"]}
        for name in refused.intersection(fields):
            values = [_plain(text) for text in fields.getlist(name)]
            found[name] = values if len(values) > 1 else values[0]
    return to_json(found)


def _plain(text: str) -> str | int | bool:
    """Read a value of a URL: a truth value, an integer, or text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else text
