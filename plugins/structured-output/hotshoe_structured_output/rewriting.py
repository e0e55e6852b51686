"""Rewrites a JSON Schema that was not refused, so that llguidance reads it as the standard does."""

from __future__ import annotations

import copy
from typing import Any

from hotshoe_structured_output.patterns import rewritten
from hotshoe_structured_output.schema import Schema, reachable


def for_llguidance(root: Schema) -> Schema:
    """Return a schema with the same meaning, in the library's words; `root` is left as it is.

    Raises:
        RequestError: A pattern has no such words.
    """
    made = copy.deepcopy(root)
    for _, schema in list(reachable(made)):
        assert isinstance(schema, dict)
        _rewrite(schema)
    return made


def _rewrite(schema: dict[str, Any]) -> None:
    if "pattern" in schema:
        schema["pattern"] = rewritten(schema["pattern"])
    if "patternProperties" in schema:
        found = schema["patternProperties"].items()
        schema["patternProperties"] = {rewritten(pattern): child for pattern, child in found}
