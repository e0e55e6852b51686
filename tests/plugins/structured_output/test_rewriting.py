"""Schemas as llguidance gets them: same meaning, other words."""

from __future__ import annotations

import copy

from hotshoe_structured_output.rewriting import for_llguidance


def test_only_what_judges_is_rewritten() -> None:
    odd = '[^"]'
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string", "pattern": odd}},
        "default": {"pattern": odd},
        "patternProperties": {odd: {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"pattern": odd}, "unused": {"pattern": odd}},
    }
    before = copy.deepcopy(schema)
    made = for_llguidance(schema)
    assert schema == before
    assert made["properties"]["pattern"]["pattern"] != odd
    assert made["$defs"]["x"]["pattern"] != odd
    assert odd not in made["patternProperties"]
    assert made["default"] == {"pattern": odd} and made["$defs"]["unused"] == {"pattern": odd}
    assert for_llguidance(True) is True
