"""What `--ignore-unknown-fields` does: reads a body without the fields that nobody knows.

Clients of other servers send fields of those. By default such a field is refused by name.
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from hotshoe_server.errors import clean, from_validation, spelt
from hotshoe_server.validation import Body, Place, find_place, validated

_log = logging.getLogger(__name__)
#: How often a body is read again; a list of objects names one mistake at a time.
MAX_ROUNDS = 64
#: Fields whose values name one of several alternatives.
TAGS = ("role", "type")
#: Names that the log has had, each once; clients choose them, so there is an end.
MAX_NAMES = 256
_named: set[str] = set()


def without_unknown(model: type[Body], body: bytes, error: ValidationError) -> Body:
    """Read a request without its unknown fields.

    Args:
        model: What it must be.
        body: What does not fit.
        error: Why.

    Raises:
        ApiError: It does not fit for another reason.
    """
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise from_validation(error, body) from None
    for _ in range(MAX_ROUNDS):
        mistakes = error.errors(include_url=False, include_input=False)
        places = [find_place(m["loc"], value) for m in mistakes if m["type"] == "extra_forbidden"]
        if not places:
            break
        for place in places:
            _say(place)
            _remove(value, place)
        try:
            return validated(model, to_json(value))
        except ValidationError as found:
            error = found
    raise from_validation(error, to_json(value)) from None


def _say(place: Place) -> None:
    """Say once that a field is left out."""
    name = clean(spelt(tuple(0 if isinstance(part, int) else part for part in place)) or "")
    if name not in _named and len(_named) < MAX_NAMES:
        _named.add(name)
        _log.warning("a field that nobody knows is ignored: %s", name)


def _remove(value: Any, place: Place) -> None:
    """Take a field out, also of entries that have the form of the one that was named: they are
    read alike, and long conversations have more of them than there are rounds."""
    part, *rest = place
    if isinstance(part, int):
        form = _form(value[part])
        for entry in [entry for entry in value if _form(entry) == form]:
            _remove(entry, tuple(rest))
    elif not rest:
        value.pop(part, None)
    elif _leads(value.get(part), rest[0]):
        _remove(value[part], tuple(rest))


def _leads(value: Any, part: int | str) -> bool:
    """Tell whether a value has such a part."""
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict)


def _form(entry: Any) -> object:
    """Return what says how an entry of a list is read: the types of its fields, and names of
    alternatives."""
    if not isinstance(entry, dict):
        return type(entry)
    return {key: entry[key] if key in TAGS else type(entry[key]) for key in entry}
