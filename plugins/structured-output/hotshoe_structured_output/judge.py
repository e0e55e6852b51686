"""Judges a finished JSON text by its schema, where a grammar allows more than the schema does.

Knows the keywords that llguidance keeps, which are all that a schema has that comes here. Patterns
and formats are judged by the library itself, in time linear in a string, and all other work is
counted. Source: JSON Schema 2020-12, core and validation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from hotshoe_structured_output.exclusion import plain
from hotshoe_structured_output.schema import Schema, reachable, resolve

#: Schemas that are applied to values, for all of a text; each takes some microseconds.
MAX_WORK = 20_000
#: What a pattern costs, in these.
PATTERN_WORK = 50

Object = Mapping[str, Any]
#: Tells whether a string follows a schema of a pattern or a format alone.
Test = Callable[[str], bool]
_NOT = "the text follows no branch of a oneOf, or several"


class Judge:
    """One schema, ready to judge texts.

    Args:
        root: A schema that was not refused.
        compile_test: Makes the test of a pattern or a format.
    """

    def __init__(self, root: Schema, compile_test: Callable[[Object], Test]) -> None:
        self._root = root
        self._tests: dict[str, Test] = {}
        self._left = 0
        for _, schema in reachable(root):
            for part in _string_parts(schema):
                key = json.dumps(part)
                if key not in self._tests:
                    self._tests[key] = compile_test({"type": "string", **part})

    def objection(self, text: bytes) -> str | None:
        """Say why a text does not follow the schema; None if it does."""
        self._left = MAX_WORK
        try:
            return None if self._holds(self._root, json.loads(text)) else _NOT
        except (ValueError, RecursionError) as error:
            return f"the text cannot be judged: {error}"

    def _holds(self, schema: Schema, value: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        self._work(1)
        return all(check(self, schema, value) for check in _CHECKS)

    def _work(self, amount: int) -> None:
        self._left -= amount
        if self._left < 0:
            raise ValueError("it takes too long")

    def _types(self, schema: Object, value: Any) -> bool:
        types = schema.get("type")
        listed = [types] if isinstance(types, str) else types
        return listed is None or any(_TYPES[name](value) for name in listed)

    def _values(self, schema: Object, value: Any) -> bool:
        if "enum" not in schema and "const" not in schema:
            return True
        self._work(len(schema.get("enum", ())))
        mine = _written(value)
        if "const" in schema and _written(schema["const"]) != mine:
            return False
        return "enum" not in schema or any(_written(one) == mine for one in schema["enum"])

    def _numbers(self, schema: Object, value: Any) -> bool:
        if not _TYPES["number"](value):
            return True
        if "multipleOf" in schema and _exact(value) % _exact(schema["multipleOf"]):
            return False
        return (
            value >= schema.get("minimum", value)
            and value <= schema.get("maximum", value)
            and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
            and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        )

    def _sizes(self, schema: Object, value: Any) -> bool:
        for kind, name in ((str, "Length"), (list, "Items"), (dict, "Properties")):
            if isinstance(value, kind):
                size = len(value)
                return schema.get(f"min{name}", 0) <= size <= schema.get(f"max{name}", size)
        return True

    def _strings(self, schema: Object, value: Any) -> bool:
        if not isinstance(value, str):
            return True
        parts = ({name: schema[name]} for name in ("pattern", "format") if name in schema)
        return all(self._matches(part, value) for part in parts)

    def _matches(self, part: Object, text: str) -> bool:
        test = self._tests.get(json.dumps(part))
        self._work(PATTERN_WORK + len(text) // 100)
        return test is None or test(text)  # without a test: a format that is an annotation

    def _items(self, schema: Object, value: Any) -> bool:
        if not isinstance(value, list):
            return True
        first, rest = schema.get("prefixItems", ()), schema.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, schema.get("additionalItems", True)
        pairs = [*zip(first, value, strict=False), *((rest, item) for item in value[len(first) :])]
        return all(self._holds(part, item) for part, item in pairs)

    def _properties(self, schema: Object, value: Any) -> bool:
        if not isinstance(value, dict):
            return True
        if not value.keys() >= set(schema.get("required", ())):
            return False
        declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, item in value.items():
            parts = [declared[name]] if name in declared else []
            parts += [p for key, p in patterns.items() if self._matches({"pattern": key}, name)]
            parts = parts or [schema.get("additionalProperties", True)]
            if not all(self._holds(part, item) for part in parts):
                return False
        return True

    def _combined(self, schema: Object, value: Any) -> bool:
        if "$ref" in schema:
            target = resolve(self._root, schema["$ref"], "#")[1]
            if not self._holds(target, value):
                return False
        if not all(self._holds(part, value) for part in schema.get("allOf", ())):
            return False
        if "anyOf" in schema and not any(self._holds(part, value) for part in schema["anyOf"]):
            return False
        return "oneOf" not in schema or sum(self._holds(p, value) for p in schema["oneOf"]) == 1


_CHECKS: tuple[Callable[[Judge, Object, Any], bool], ...] = (
    *(Judge._types, Judge._values, Judge._numbers, Judge._sizes, Judge._strings),
    *(Judge._items, Judge._properties, Judge._combined),
)
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _TYPES["number"](value) and value == int(value),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _string_parts(schema: Object) -> list[Object]:
    """Return the patterns and formats of a schema, each as a schema of its own."""
    found: list[Object] = [{name: schema[name]} for name in ("pattern", "format") if name in schema]
    return found + [{"pattern": pattern} for pattern in schema.get("patternProperties", ())]


def _exact(number: float) -> Fraction:
    return Fraction(repr(number))


def _written(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True)
