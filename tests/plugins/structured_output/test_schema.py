"""Schemas that clients send: bounded, resolved, and refused with the place of the mistake."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.errors import RequestError
from hotshoe_structured_output.keywords import (
    LLGUIDANCE,
    MAX_COMBINED_PATTERNS,
    XGRAMMAR,
    unsupported,
)
from hotshoe_structured_output.schema import MAX_DEPTH, parse_json, reachable


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not JSON"),
        ('{"const": NaN}', "NaN is not a JSON number"),
        ('{"const": -Infinity}', "Infinity is not"),
        ("[" * 200_000, "is not JSON"),
        ('{"not":' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1), "deeper than"),
        (f'{{"const": {"9" * 5000}}}', "is not JSON"),
    ],
    ids=["cut", "nan", "infinity", "brackets", "deep", "long number"],
)
def test_text_that_is_not_a_schema(text: str, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        parse_json(text, "schema")
    assert caught.value.field == "grammar"


def test_the_deepest_schema_is_read() -> None:
    text = '{"not":' * (MAX_DEPTH - 1) + "{}" + "}" * (MAX_DEPTH - 1)
    assert json.dumps(parse_json(text, "schema"), separators=(",", ":")) == text


MALFORMED = [
    ({"type": "text"}, "'type' must be one of"),
    ({"type": []}, "'type' must be one of"),
    ({"type": 3}, "'type' must be one of"),
    ({"type": "object", "required": "a"}, "'required' must be a list of names"),
    ({"type": "object", "required": [1]}, "'required' must be a list of names"),
    ({"type": "object", "properties": []}, "#/properties must be an object of schemas"),
    ({"type": "object", "properties": {"a/b": 3}}, "#/properties/a~1b must be a schema"),
    ({"anyOf": {}}, "#/anyOf must be a list of schemas"),
    ({"anyOf": [{}, None]}, "#/anyOf/1 must be a schema"),
    ({"enum": []}, "'enum' must be a list of at least one"),
    ({"enum": 3}, "'enum' must be a list of at least one"),
    ({"minLength": -1}, "'minLength' must be a whole number"),
    ({"minLength": True}, "'minLength' must be a whole number"),
    ({"maxItems": 1.5}, "'maxItems' must be a whole number"),
    ({"minimum": "1"}, "'minimum' must be a number"),
    ({"exclusiveMinimum": True}, "'exclusiveMinimum' must be a number"),
    ({"multipleOf": 0}, "'multipleOf' must be a number above 0"),
    ({"pattern": 3}, "'pattern' must be text"),
    ({"$ref": 3}, r"'\$ref' must be text"),
    ({"$ref": "#/$defs/x"}, "leads nowhere"),
    ({"$ref": "#/$defs/7", "$defs": [{}]}, "leads nowhere"),
    ({"$ref": "other.json#/x"}, "only pointers within the schema"),
    ({"$ref": "#anchor"}, "only pointers within the schema"),
    ({"$ref": "#"}, "circle at # that consumes no text"),
    ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "circle"),
    (3, "# must be a schema"),
]


@pytest.mark.parametrize(("schema", "match"), MALFORMED)
@pytest.mark.parametrize("table", [LLGUIDANCE, XGRAMMAR], ids=["llguidance", "xgrammar"])
def test_a_malformed_schema_is_refused(schema, match: str, table) -> None:
    with pytest.raises(RequestError, match=match):
        unsupported(schema, table, 100)


def test_recursion_through_a_property_is_no_circle() -> None:
    schema = {"properties": {"next": {"$ref": "#"}, "other": {"$ref": "#/properties/next"}}}
    assert [place for place, _ in reachable(schema)] == [
        "#",
        "#/properties/other",
        "#/properties/next",
    ]


def test_each_schema_is_visited_once() -> None:
    shared = {"$defs": {"x": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/x"}] * 50}
    assert len(list(reachable(json.loads(json.dumps(shared))))) == 52


def chain(length: int) -> dict:
    schema = {"$defs": {str(i): {"items": {"$ref": f"#/$defs/{i + 1}"}} for i in range(length)}}
    schema["$defs"][str(length)] = {}
    return {**schema, "$ref": "#/$defs/0"}


def test_references_are_followed_only_so_far() -> None:
    assert len(list(reachable(chain(600)))) == 1202
    with pytest.raises(RequestError, match="nests deeper than 2000 levels in all"):
        list(reachable(chain(700)))


def test_many_references_to_one_place_are_one() -> None:
    schema = {"$defs": {"x": {"type": "integer"}}, "items": {"$ref": "#/$defs/x"}}
    schema["properties"] = {str(i): {"$ref": "#/$defs/x"} for i in range(3000)}
    assert len(list(reachable(schema))) == 3003


KEYWORDS = st.sampled_from([*LLGUIDANCE, "not", "$defs", "uniqueItems", "$id"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS | st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(KEYWORDS, JSON, max_size=6))
def test_nothing_else_than_a_refusal_comes_of_any_json(schema) -> None:
    for table in (LLGUIDANCE, XGRAMMAR):
        try:
            reason = unsupported(schema, table, 100)
        except RequestError as error:
            reason = str(error)
        assert reason is None or reason


@pytest.mark.parametrize(
    "spread",
    [
        lambda patterns: {"allOf": [{"pattern": p} for p in patterns]},
        lambda patterns: {"allOf": [{"properties": {"a": {"pattern": p}}} for p in patterns]},
        lambda patterns: {
            "$defs": {str(i): {"pattern": p} for i, p in enumerate(patterns)},
            "allOf": [{"$ref": f"#/$defs/{i}"} for i in range(len(patterns))],
        },
        lambda patterns: functools.reduce(
            lambda inner, p: {"pattern": p, "anyOf": [inner]}, patterns, {"type": "string"}
        ),
    ],
)
def test_patterns_that_may_intersect_are_few(spread) -> None:
    patterns = [f"a{{{i}}}" for i in range(MAX_COMBINED_PATTERNS + 1)]
    assert unsupported(spread(patterns[1:]), LLGUIDANCE, 100) is None
    reason = unsupported(spread(patterns), LLGUIDANCE, 100)
    assert reason is not None and "patterns" in reason
    apart = {"properties": {p: {"type": "string", "pattern": p} for p in patterns}}
    assert unsupported(apart, LLGUIDANCE, 100) is None
