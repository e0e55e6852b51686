"""Reads a JSON Schema with care: bounded, every `$ref` resolved, every reachable part visited.

Knows where keywords keep subschemas, but not what a backend supports; `keywords` does. The schema
itself is never changed: a backend compiles what the caller wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from hotshoe.errors import RequestError

MAX_DEPTH = 100
Schema = Mapping[str, Any] | bool

#: Keyword -> how it keeps subschemas.
ONE, MANY, NAMED = "one", "many", "named"
SUBSCHEMAS = {
    "additionalItems": ONE,
    "additionalProperties": ONE,
    "allOf": MANY,
    "anyOf": MANY,
    "contains": ONE,
    "dependentSchemas": NAMED,
    "else": ONE,
    "if": ONE,
    "items": ONE,
    "not": ONE,
    "oneOf": MANY,
    "patternProperties": NAMED,
    "prefixItems": MANY,
    "properties": NAMED,
    "propertyNames": ONE,
    "then": ONE,
    "unevaluatedItems": ONE,
    "unevaluatedProperties": ONE,
}
#: Keywords whose subschemas judge the same value as the schema that holds them.
IN_PLACE = ("allOf", "anyOf", "oneOf", "if", "then", "else", "not")


def parse_json(text: str, what: str) -> Any:
    """Read JSON that a client sent.

    Raises:
        RequestError: It is not JSON, or nests too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise refusal(f"the {what} is not JSON: {error}") from error
    if _depth(value) > MAX_DEPTH:
        raise refusal(f"the {what} nests deeper than {MAX_DEPTH} levels")
    return value


def reachable(root: Schema) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Visit each schema that can judge a part of the value, once, with its place as a pointer.

    Definitions that nothing refers to are not visited.

    Raises:
        RequestError: A keyword holds something that is not a schema, a `$ref` leads nowhere or
            away from this document, or `$ref`s run in a circle that consumes no text.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("#", root)]
    in_place: dict[str, list[str]] = {}
    while stack:
        place, schema = stack.pop()
        if isinstance(schema, bool) or id(schema) in seen:
            continue
        if not isinstance(schema, Mapping):
            raise refusal(f"{place} must be a schema: an object, true or false")
        seen.add(id(schema))
        yield place, schema
        edges = in_place[place] = []
        for keyword, child_place, child in _children(place, schema):
            stack.append((child_place, child))
            if keyword in IN_PLACE:
                edges.append(child_place)
        if "$ref" in schema:
            target_place, target = _resolve(root, schema["$ref"], place)
            stack.append((target_place, target))
            edges.append(target_place)
    _check_circles(in_place)


def _children(place: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for keyword, form in SUBSCHEMAS.items():
        if keyword not in schema:
            continue
        value, here = schema[keyword], f"{place}/{keyword}"
        if form is ONE and not (keyword == "items" and isinstance(value, list)):
            yield keyword, here, value
        elif form is NAMED:
            if not isinstance(value, Mapping):
                raise refusal(f"{here} must be an object of schemas")
            for name, child in value.items():
                yield keyword, f"{here}/{_escaped(name)}", child
        else:
            if not isinstance(value, list):
                raise refusal(f"{here} must be a list of schemas")
            for index, child in enumerate(value):
                yield keyword, f"{here}/{index}", child


def _resolve(root: Schema, reference: Any, place: str) -> tuple[str, Any]:
    """Follow a `$ref`, which must be a JSON pointer into this document. Source: RFC 6901."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise refusal(
            f"$ref {reference!r} at {place}: only pointers within the schema are supported, such "
            "as #/$defs/name"
        )
    found: Any = root
    for part in unquote(reference).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            raise refusal(f"$ref {reference!r} at {place} leads nowhere")
    return unquote(reference), found


def _check_circles(in_place: Mapping[str, list[str]]) -> None:
    """Refuse a schema that judges a value by judging the same value by itself."""
    done: set[str] = set()
    for start in in_place:
        path: dict[str, Iterator[str]] = {}
        place: str | None = start
        while place is not None:
            if place not in done and place not in path:
                path[place] = iter(in_place.get(place, ()))
            elif place in path:
                raise refusal(f"$ref circle at {place} that consumes no text")
            place = None
            while path and place is None:
                last = next(reversed(path))
                place = next(path[last], None)
                if place is None:
                    done.add(last)
                    del path[last]


def _depth(value: Any) -> int:
    """Return how deeply a JSON value nests, without recursion."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return depth


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def refusal(message: str) -> RequestError:
    """Return the error for a grammar that no backend can serve."""
    return RequestError(f"grammar: {message}", "grammar")
