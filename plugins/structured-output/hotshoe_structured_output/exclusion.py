"""Decides whether two schemas exclude each other, as the branches of `oneOf` must.

A library generates for `oneOf` texts of one branch or another; they are valid only where no value
follows two of them. Types, values, required properties whose schemas exclude each other (such as
a discriminator), closed objects and bounds decide that; what they leave open is undecided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from hotshoe_structured_output.schema import TYPES, Schema, reachable, resolve

#: Comparisons for all of a schema; each takes some microseconds.
MAX_WORK = 20_000
_MAX_DEPTH = 12
Conjunction = Sequence[Mapping[str, Any]]
#: Types -> a keyword that bounds a value from below, one from above, and whether equals are apart.
_BOUNDS = (
    ("string", "minLength", "maxLength", False),
    ("array", "minItems", "maxItems", False),
    ("object", "minProperties", "maxProperties", False),
    ("number", "minimum", "maximum", False),
    ("number", "exclusiveMinimum", "maximum", True),
    ("number", "minimum", "exclusiveMaximum", True),
    ("number", "exclusiveMinimum", "exclusiveMaximum", True),
)


def undecided(*roots: Schema) -> str | None:
    """Say which `oneOf` has branches that may hold together; None if there is none.

    Args:
        roots: Schemas whose references and shapes were checked.
    """
    work = _Work()
    found = (_undecided(root, _Comparison(root, work)) for root in roots)
    return next((reason for reason in found if reason is not None), None)


def _undecided(root: Schema, compare: _Comparison) -> str | None:
    for place, schema in reachable(root):
        branches = schema.get("oneOf", ())
        rest = {name: value for name, value in schema.items() if name != "oneOf"}
        for (i, one), (j, other) in combinations(enumerate(branches), 2):
            if not compare.exclude(_all_of(rest, one), _all_of(rest, other)):
                return (
                    f"JSON Schema keyword 'oneOf' has branches {i} and {j} that may hold for the "
                    f"same value (at {place}); give them a required property with different "
                    "constants, or use anyOf"
                )
    return None


def _all_of(rest: Mapping[str, Any], branch: Schema) -> Conjunction | None:
    """Return the schemas that must hold together; None if nothing follows them."""
    if isinstance(branch, bool):
        return [rest] if branch else None
    return [rest, branch]


class _Work:
    """What may still be compared."""

    left = MAX_WORK


class _Comparison:
    """Comparisons within one schema, until the work is used up."""

    def __init__(self, root: Schema, work: _Work) -> None:
        self._root = root
        self._work = work

    def exclude(self, one: Conjunction | None, other: Conjunction | None, depth: int = 0) -> bool:
        """Tell whether no value can follow both; False if that is undecided."""
        if one is None or other is None:
            return True
        self._work.left -= 1 + len(one) + len(other)
        if self._work.left < 0 or depth > _MAX_DEPTH:
            return False
        left, right = self._expanded(one), self._expanded(other)
        if left is None or right is None:
            return True
        shared = _types(left) & _types(right)
        return (
            not shared
            or _values_apart(left, right)
            or all(self._apart(kind, left, right, depth) for kind in shared)
            or self._branches_apart(left, right, depth)
        )

    def _apart(self, kind: str, left: Conjunction, right: Conjunction, depth: int) -> bool:
        """Tell whether no value of a type can follow both."""
        if _bounds_apart(kind, left, right):
            return True
        return kind == "object" and self._objects_apart(left, right, depth)

    def _objects_apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        names = _required(left) | _required(right)
        for name in sorted(names):
            if _forbids(left, name) or _forbids(right, name):
                return True
            found = _property(left, name), _property(right, name)
            if all(found) and self.exclude(*found, depth + 1):
                return True
        return False

    def _branches_apart(self, left: Conjunction, right: Conjunction, depth: int) -> bool:
        """Try the alternatives of either side, one after another."""
        for mine, others in ((left, right), (right, left)):
            for schema in mine:
                for keyword in ("anyOf", "oneOf"):
                    branches = schema.get(keyword)
                    if branches is None:
                        continue
                    rest = {n: v for n, v in schema.items() if n != keyword}
                    parts = [s for s in mine if s is not schema]
                    cases = (_all_of(rest, branch) for branch in branches)
                    if all(
                        case is None or self.exclude([*parts, *case], others, depth + 1)
                        for case in cases
                    ):
                        return True
        return False

    def _expanded(self, schemas: Conjunction) -> Conjunction | None:
        """Add what references and allOf bring; None if one of them is false."""
        found: list[Mapping[str, Any]] = []
        todo: list[Any] = list(schemas)
        while todo:
            schema = todo.pop()
            if schema is False:
                return None
            if schema is True or any(schema is one for one in found):
                continue
            found.append(schema)
            todo += schema.get("allOf", ())
            if "$ref" in schema:
                todo.append(resolve(self._root, schema["$ref"], "#")[1])
        return found


def _types(schemas: Conjunction) -> set[str]:
    found = set(TYPES)
    for schema in schemas:
        listed = schema.get("type", TYPES)
        named = {listed} if isinstance(listed, str) else set(listed)
        found &= named | ({"integer"} if "number" in named else set())
    return found


def _values(schemas: Conjunction) -> set[str] | None:
    """Return the values that are listed, as text by which they compare; None if any may be."""
    found: set[str] | None = None
    for schema in schemas:
        for listed in (schema.get("enum"), [schema["const"]] if "const" in schema else None):
            if listed is not None:
                texts = {json.dumps(plain(value), sort_keys=True) for value in listed}
                found = texts if found is None else found & texts
    return found


def plain(value: Any) -> Any:
    """Return a value in which 1.0 is written as 1, as they are equal."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value


def _values_apart(left: Conjunction, right: Conjunction) -> bool:
    mine, others = _values(left), _values(right)
    if mine is not None and others is not None:
        return not mine & others
    if mine is None and others is None:
        return False
    listed, types = (mine, _types(right)) if mine is not None else (others, _types(left))
    return not any(types & _types_of(json.loads(text)) for text in listed or ())


def _types_of(value: Any) -> set[str]:
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, (int, float)):
        return {"integer", "number"} if isinstance(value, int) else {"number"}
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return {names[type(value)]}


def _bounds_apart(kind: str, left: Conjunction, right: Conjunction) -> bool:
    kind = "number" if kind == "integer" else kind
    for bounded, low, high, equals in _BOUNDS:
        if bounded != kind:
            continue
        for mine, others in ((left, right), (right, left)):
            lows = [schema[low] for schema in mine if low in schema]
            highs = [schema[high] for schema in others if high in schema]
            if any(a > b or (equals and a == b) for a in lows for b in highs):
                return True
    return False


def _required(schemas: Conjunction) -> set[str]:
    return {name for schema in schemas for name in schema.get("required", ())}


def _forbids(schemas: Conjunction, name: str) -> bool:
    """Tell whether an object may not have a property, which some other schema requires."""
    for schema in schemas:
        declared = schema.get("properties", {})
        if declared.get(name) is False:
            return True
        closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
        if closed and name not in declared:
            return True
    return False


def _property(schemas: Conjunction, name: str) -> list[Mapping[str, Any]]:
    """Return what holds for a property's value."""
    found = (schema.get("properties", {}).get(name) for schema in schemas)
    return [one for one in found if isinstance(one, Mapping)]
