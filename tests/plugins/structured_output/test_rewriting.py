"""Schemas as llguidance gets them: same meaning, other words."""

from __future__ import annotations

import copy
import json

import pytest

from hotshoe.types import GrammarSpec
from hotshoe_structured_output.rewriting import for_llguidance

INT = {"type": "integer"}


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


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_properties_come_in_the_order_of_the_schema(llguidance_bench, keyword: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": INT},
        "required": ["a"],
        keyword: [{"properties": {"b": INT}, "required": ["b"]}],
    }
    grammar = llguidance_bench.compile(GrammarSpec.json_schema(schema))
    assert llguidance_bench.accepts(grammar, json.dumps({"a": 1, "b": 2}))
    assert not llguidance_bench.accepts(grammar, json.dumps({"b": 2, "a": 1}))


def test_names_that_nothing_refers_to_mean_nothing(bench) -> None:
    inner = {"$id": "/properties/a", "type": "integer"}
    closed = {"type": "object", "required": ["a"], "additionalProperties": False}
    schema = {"$id": "http://a.example/b", **closed, "properties": {"a": inner}}
    grammar = bench.compile(GrammarSpec.json_schema(schema))
    assert bench.accepts(grammar, json.dumps({"a": 1}))
    assert not bench.accepts(grammar, json.dumps({"a": "b"}))


def test_lists_stay_open_in_xgrammar(bench) -> None:
    schema = {"type": "array", "prefixItems": [{"type": "integer"}]}
    grammar = bench.compile(GrammarSpec.json_schema(schema))
    for text in ("[]", "[1]", '[1,"x",{"a":1}]'):
        assert bench.accepts(grammar, text)
    assert not bench.accepts(grammar, '["x"]')
    closed = bench.compile(GrammarSpec.json_schema({**schema, "items": False}))
    assert not bench.accepts(closed, "[1,2]")
