"""From the bytes of a body to a request, and from a mistake in them to its place.

Null means "not given" for every field, known or not. A field that takes null says so itself; where
validation stumbles over another null, that null is left out and the body read again.

Values of a long body are counted before any of them is built: millions of small ones cost seconds
and gigabytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from hotshoe.errors import RequestError

Body = TypeVar("Body", bound=BaseModel)
Place = tuple[int | str, ...]
#: The rest of a string behind its opening quotation mark.
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
#: Of one body: the most keys of objects, objects and lists, and entries of either, without those
#: that a long context adds.
MAX_KEYS, MAX_CONTAINERS, MAX_ENTRIES = 2**14, 2**16, 2**18
#: How many different fields may be null that do not take it.
MAX_NULLS = 32


def check_counts(body: bytes, max_model_len: int) -> None:
    """Refuse a body of more values than requests for such a context can have.

    Raises:
        RequestError: There are too many.
    """
    limits = {
        b":": ("keys of objects", MAX_KEYS + min(max_model_len // 2, 3 * MAX_KEYS)),
        b"[": ("lists", MAX_CONTAINERS),
        b"{": ("objects", MAX_CONTAINERS),
        b",": ("entries of lists and objects", MAX_ENTRIES + 4 * max_model_len),
    }
    counts = dict.fromkeys(limits, 0)
    at = 0
    while at < len(body):
        quote = body.find(b'"', at)
        end = len(body) if quote < 0 else quote
        for mark, (name, limit) in limits.items():
            counts[mark] += body.count(mark, at, end)
            if counts[mark] > limit:
                raise RequestError(f"the body has more than {limit} {name}; send fewer")
        string = _STRING.match(body, end + 1)
        if string is None:  # the end, or no JSON, as validation says
            return
        at = string.end()


def validated(model: type[Body], body: bytes) -> Body:
    """Read a request.

    Raises:
        ValidationError: It does not fit; places are those of the body as it came.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError:
        raise first from None
    error = first
    for _ in range(MAX_NULLS):
        if not _leave_out_nulls(error, value):
            break
        try:
            return model.model_validate_json(to_json(value))
        except ValidationError as found:
            error = found
    raise error


def _leave_out_nulls(error: ValidationError, value: Any) -> bool:
    """Remove the nulls that an error names, from all entries of lists; return if there were any."""
    places = {
        tuple(None if isinstance(part, int) else part for part in find_place(found["loc"], value))
        for found in error.errors(include_url=False)
        if found["input"] is None
    }
    removed = [_remove(value, place) for place in places]
    return any(removed)


def _remove(value: Any, place: tuple[str | None, ...]) -> bool:
    """Remove nulls at a place, where None stands for every entry of a list."""
    if not place:
        return False
    part, *rest = place
    if part is None:
        entries = value if isinstance(value, list) else ()
        removed = [_remove(entry, tuple(rest)) for entry in entries]
        return any(removed)
    if not isinstance(value, dict) or part not in value:
        return False
    if rest:
        return _remove(value[part], tuple(rest))
    if value[part] is None:
        del value[part]
        return True
    return False


def find_place(location: Place, value: Any, missing: bool = False) -> Place:
    """Return the place in a body that a location of pydantic's means.

    A location also has names of alternatives that the validation tried, and such a name may be a
    key of the object there as well. Of all readings the one is taken that ends at a key.

    Args:
        location: From an error.
        value: The body.
        missing: The last part is a key that is not there.
    """
    readings = _readings(location, value, missing)
    return max(readings, key=lambda reading: reading[:2], default=(0, 0, ()))[2]


def _readings(location: Place, value: Any, missing: bool) -> Iterator[tuple[int, int, Place]]:
    """Yield readings of a location: their quality, their length, the place."""
    if not location:
        yield 1, 0, ()
        return
    part, rest = location[0], location[1:]
    is_key = isinstance(value, dict) and isinstance(part, str)
    if is_key and not rest and missing is (part not in value):
        yield 2, 1, (part,)
    elif isinstance(value, list) and isinstance(part, int):
        entry = value[part] if part < len(value) else None
        yield from _within(part, _readings(rest, entry, missing))
        return
    elif is_key and part in value:
        yield from _within(part, _readings(rest, value[part], missing))
    if isinstance(part, str):  # the name of an alternative
        yield from _readings(rest, value, missing)


def _within(
    part: int | str, readings: Iterator[tuple[int, int, Place]]
) -> Iterator[tuple[int, int, Place]]:
    return ((quality, length + 1, (part, *place)) for quality, length, place in readings)
