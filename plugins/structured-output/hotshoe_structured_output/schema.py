"""Reads a JSON Schema with care: bounded, every `$ref` resolved, every reachable part visited.

Knows where keywords keep subschemas, but not what a backend supports; `keywords` does. The schema
itself is never changed: a backend compiles what the caller wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from hotshoe.errors import RequestError

MAX_DEPTH = 100
#: Levels of everything that is referred to, together: a library may follow one reference from
#: within another by recursion, and 5,000 levels exhaust a thread's stack.
MAX_REFERRED_DEPTH = 2000
Schema = Mapping[str, Any] | bool

TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))

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


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _types(value: Any) -> bool:
    listed = [value] if isinstance(value, str) else value
    return _texts(listed) and len(listed) > 0 and TYPES.issuperset(listed)


#: What the value of a keyword must be: in words, and as a test.
_SHAPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(
        "maxItems maxLength maxProperties minItems minLength minProperties".split(),
        ("a whole number, 0 or above", _count),
    ),
    **dict.fromkeys(
        "exclusiveMaximum exclusiveMinimum maximum minimum".split(), ("a number", _number)
    ),
    **dict.fromkeys("$ref format pattern".split(), ("text", lambda x: isinstance(x, str))),
    "enum": ("a list of at least one value", lambda x: isinstance(x, list) and len(x) > 0),
    "multipleOf": ("a number above 0", lambda x: _number(x) and x > 0),
    "required": ("a list of names", _texts),
    "type": (f"one of {', '.join(sorted(TYPES))}, or a list of them", _types),
}


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
            away from this document, `$ref`s lead to too much, or run in a circle that consumes
            no text.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("#", root)]
    in_place: dict[str, list[str]] = {}
    referred: set[int] = set()
    levels_left = MAX_REFERRED_DEPTH
    while stack:
        place, schema = stack.pop()
        if isinstance(schema, bool) or id(schema) in seen:
            continue
        if not isinstance(schema, Mapping):
            raise refusal(f"{place} must be a schema: an object, true or false")
        seen.add(id(schema))
        _check_shapes(place, schema)
        children = list(_children(place, schema))
        yield place, schema
        edges = in_place[place] = []
        for keyword, child_place, child in children:
            stack.append((child_place, child))
            if keyword in IN_PLACE:
                edges.append(child_place)
        if "$ref" in schema:
            target_place, target = resolve(root, schema["$ref"], place)
            if id(target) not in referred:
                referred.add(id(target))
                levels_left -= _depth(target)
                if levels_left < 0:
                    raise refusal(
                        f"what $ref leads to nests deeper than {MAX_REFERRED_DEPTH} levels in all"
                    )
            stack.append((target_place, target))
            edges.append(target_place)
    _check_circles(in_place)


def _check_shapes(place: str, schema: Mapping[str, Any]) -> None:
    for keyword, value in schema.items():
        words, test = _SHAPES.get(keyword, ("", lambda _: True))
        if not test(value):
            raise refusal(f"JSON Schema keyword {keyword!r} must be {words} (at {place})")


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


def resolve(root: Schema, reference: str, place: str) -> tuple[str, Any]:
    """Follow a `$ref`, which must be a JSON pointer into this document. Source: RFC 6901."""
    if reference != "#" and not reference.startswith("#/"):
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
