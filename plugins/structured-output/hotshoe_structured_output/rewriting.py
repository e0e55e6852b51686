"""Rewrites a JSON Schema that was not refused, so that a library reads it as the standard does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from hotshoe_structured_output.keywords import format_of
from hotshoe_structured_output.patterns import rewritten
from hotshoe_structured_output.schema import Schema, reachable


def for_llguidance(root: Schema) -> Schema:
    """Return a schema with the same meaning, in llguidance's words; `root` is left as it is.

    Raises:
        RequestError: A pattern has no such words.
    """
    return _rewritten(root, _drop_annotations, _write_patterns)


def for_xgrammar(root: Schema) -> Schema:
    """Return a schema with the same meaning, in xgrammar's words; `root` is left as it is."""
    return _rewritten(root, _drop_annotations, _open_lists)


def _rewritten(root: Schema, *rules: Callable[[dict[str, Any]], None]) -> Schema:
    made = copy.deepcopy(root)
    for _, schema in list(reachable(made)):
        assert isinstance(schema, dict)
        for rule in rules:
            rule(schema)
    return made


def _drop_annotations(schema: dict[str, Any]) -> None:
    if format_of(schema) is None:
        schema.pop("format", None)
    schema.pop("$id", None)  # nothing refers to it, or all references are from the top


def _open_lists(schema: dict[str, Any]) -> None:
    """Say that more items may follow, which is what the standard means by saying nothing."""
    if "prefixItems" in schema:
        schema.setdefault("items", True)


def _write_patterns(schema: dict[str, Any]) -> None:
    if "pattern" in schema:
        schema["pattern"] = rewritten(schema["pattern"])
    if "patternProperties" in schema:
        found = schema["patternProperties"].items()
        schema["patternProperties"] = {rewritten(pattern): child for pattern, child in found}
