"""The arguments that a tool's schema declares, for formats that write them one by one.

A grammar of such a format has what `properties` declares, in that order, and each value by its own
schema. What the schema says of the arguments together, and cannot be kept so, is refused by name.
Parts are those of a structural tag's structure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotshoe.errors import RequestError

Schema = Mapping[str, Any]
Part = dict[str, Any]

ANY_TYPE = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
#: Keywords that every value satisfies.
_ANNOTATIONS = frozenset(
    "$anchor $comment $defs $id $schema contentEncoding contentMediaType default definitions "
    "deprecated description example examples readOnly title writeOnly".split()
)
_DECLARING = frozenset({"type", "properties", "required", "additionalProperties"})
_DEFINITIONS = ("#/$defs/", "#/definitions/")
_MAX_REFERENCES = 8
_PYTHON_NAMES = {"boolean": ("True", "False"), "null": ("None",)}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; its schema stands alone, and has no reference at its head."""

    tool: str
    name: str
    schema: Schema
    required: bool

    def refusal(self, why: str) -> RequestError:
        """Return the error for what cannot be kept."""
        return _refusal(self.tool, f"argument {self.name!r}: {why}")

    def as_json(self) -> list[Part]:
        """Return the parts of a JSON value, whose constants may be spelled as in Python."""
        free = unconstrained(self.schema, self.schema)
        names = [
            name for kind in sorted(free & _PYTHON_NAMES.keys()) for name in _PYTHON_NAMES[kind]
        ]
        value: Part = {"schema": self.schema}
        return [{"either": [[value], *([{"text": n}] for n in names)]}] if names else [value]


def declared(tool: str, schema: Schema) -> list[Argument]:
    """Return the arguments of a tool.

    Raises:
        RequestError: The schema has a keyword that cannot be kept.
    """
    for reference in _references(schema):
        if not reference.startswith(_DEFINITIONS):
            raise _refusal(tool, f"$ref {reference!r} does not lead to $defs or definitions")
    whole = resolved(schema, schema)
    properties, required = whole.get("properties", {}), whole.get("required", [])
    odd = assertions(whole) - _DECLARING
    if odd:
        raise _refusal(tool, f"JSON Schema keyword {min(odd)!r} is not supported")
    if whole.get("type", "object") != "object" or not isinstance(properties, Mapping):
        raise _refusal(tool, "the schema must be of type object, with properties by name")
    if not isinstance(required, list) or not all(name in properties for name in required):
        raise _refusal(tool, "JSON Schema keyword 'required' names what 'properties' does not")
    return [
        Argument(tool, name, _alone(resolved(found, schema), schema), name in required)
        for name, found in properties.items()
    ]


def resolved(schema: Any, root: Any) -> Schema:
    """Follow the references at the head of a schema, as far as they lead to one in the root."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if assertions(schema) != {"$ref"} or not isinstance(reference, str):
            break
        found: Any = root
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            break
        schema = found
    return {} if schema is True else schema if isinstance(schema, Mapping) else {"not": {}}


def assertions(schema: Any) -> frozenset[str]:
    """Return the keywords of a schema that may rule a value out."""
    return frozenset(schema) - _ANNOTATIONS if isinstance(schema, Mapping) else frozenset()


def unconstrained(schema: Any, root: Any) -> frozenset[str]:
    """Return the types of which a schema allows every value, as far as its simple forms say."""
    found = resolved(schema, root)
    keywords = assertions(found)
    if not keywords:
        return ANY_TYPE
    if keywords == {"type"}:
        named = found["type"] if isinstance(found["type"], list) else [found["type"]]
        return frozenset(name for name in named if name in ANY_TYPE)
    if keywords == {"anyOf"} and isinstance(found["anyOf"], list):
        return frozenset().union(*(unconstrained(choice, root) for choice in found["anyOf"]))
    return frozenset()


def optional(parts: list[Part]) -> Part:
    """Return a part that may be left out."""
    return {"either": [parts, []]}


def _alone(schema: Schema, root: Schema) -> Schema:
    """Return a part of a schema with all that it may refer to."""
    names = ("$defs", "definitions")
    return {**schema, **{name: root[name] for name in names if name in root}}


def _references(schema: Any) -> Iterator[str]:
    todo = [schema]
    while todo:
        found = todo.pop()
        if isinstance(found, Mapping):
            todo += found.values()
            if isinstance(found.get("$ref"), str):
                yield found["$ref"]
        elif isinstance(found, list):
            todo += found


def _refusal(tool: str, why: str) -> RequestError:
    return RequestError(f"tools: calls of {tool!r} cannot be kept to its schema: {why}", "tools")
