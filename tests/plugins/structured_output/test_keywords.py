"""Every JSON Schema keyword: judged as the standard says, or refused by name; never ignored."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from hotshoe.types import GrammarSpec
from hotshoe_structured_output.keywords import (
    ANNOTATIONS,
    ASSERTIONS,
    FORMATS,
    LLGUIDANCE,
    XGRAMMAR,
    unsupported,
)


def obj(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def arr(**keywords: Any) -> dict[str, Any]:
    return {"type": "array", **keywords}


def string(**keywords: Any) -> dict[str, Any]:
    return {"type": "string", **keywords}


INT = {"type": "integer"}
STR = {"type": "string"}
ANY = [1, -5, 1.5, "a\n", "é", True, False, None, [1, "x"], {"a": 1}, {}, []]
LIST = {
    "$defs": {
        "node": obj(
            properties={"v": INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            required=["v", "next"],
            additionalProperties=False,
        )
    },
    "$ref": "#/$defs/node",
}
# name: schema, and values of which each is valid or invalid as jsonschema says
CASES: dict[str, tuple[Any, list[Any]]] = {
    **{f"type {t}": ({"type": t}, ANY) for t in (*"string number boolean null".split(),)},
    "type integer": (INT, ANY),
    "type array": (arr(), ANY),
    "type object": (obj(), ANY),
    "types": ({"type": ["string", "null"]}, ANY),
    "true": (True, ANY),
    "empty": ({}, ANY),
    "annotations": ({"title": "x", "default": 3, "x-mine": 1, "$comment": "", **INT}, ANY),
    "enum": ({"enum": [1, "a", None, {"a": 1}, [1, 2]]}, [1, "a", None, {"a": 1}, [1, 2], 2, "b"]),
    "enum text": ({"enum": ['é"\\\n', "日本"]}, ['é"\\\n', "日本", "x"]),
    "enum of a type": ({"type": "string", "enum": ["a", "b"]}, ["a", "b", "c"]),
    "const": ({"const": {"a": [1]}}, [{"a": [1]}, {"a": [2]}, 1]),
    "minLength": (string(minLength=2), ["", "a", "ab", "é", "éé", "abc"]),
    "maxLength": (string(maxLength=2), ["", "a", "ab", "abc", "éé", "ééé"]),
    "escapes count once": (string(maxLength=2), ["\n\n", "\n\n\n"]),
    "both lengths": (string(minLength=1, maxLength=2), ["", "a", "ab", "abc"]),
    "pattern": (string(pattern="^a+b$"), ["ab", "aab", "b", "abx"]),
    "pattern anywhere": (string(pattern="b"), ["b", "abc", "xx"]),
    "pattern at the start": (string(pattern="^ab"), ["ab", "abc", "cab"]),
    "pattern alternatives": (string(pattern="^a|b$"), ["ax", "xb", "xx"]),
    "pattern and length": (string(pattern="^a+$", maxLength=2), ["a", "aa", "aaa"]),
    "pattern of quotes": (string(pattern="^[^a]$"), ["b", "a", '"', "\\", "\n"]),
    "minimum": ({**INT, "minimum": 5}, [4, 5, 6, 100, -6]),
    "maximum": ({**INT, "maximum": -5}, [-4, -5, -6, -100, 6]),
    "range": ({**INT, "minimum": -3, "maximum": 12}, [-4, -3, 0, 12, 13, 100]),
    "exclusiveMinimum": ({**INT, "exclusiveMinimum": 5}, [5, 6, 4]),
    "exclusiveMaximum": ({**INT, "exclusiveMaximum": 5}, [5, 4, 6]),
    "minimum of a number": ({"type": "number", "minimum": 1.5}, [1.4, 1.5, 2, 1.51, 100, 1, -3]),
    "range of a number": ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1, 1.5, -0.5]),
    "open range": (
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        [0, 0.5, 1, 0.001, 0.999, 1.001],
    ),
    "bounds without a type": ({"minimum": 5}, [4, 5, "a", None]),
    "whole above a half": ({**INT, "minimum": 1.5}, [1, 2]),
    "multipleOf": ({**INT, "multipleOf": 3}, [3, 4, 0, -6, 7]),
    "multipleOf a half": ({"type": "number", "multipleOf": 0.5}, [0.5, 0.3, 1, 2.5]),
    "properties": (
        obj(properties={"a": INT, "b": STR}),
        [{}, {"a": 1}, {"a": "x"}, {"a": 1, "b": "x"}, {"b": 1}, {"c": 1}, {"a": 1, "c": 1}],
    ),
    "required": (
        obj(properties={"a": INT, "b": STR}, required=["b"]),
        [{}, {"a": 1}, {"a": 1, "b": "x"}, {"b": "x"}],
    ),
    "required alone": (obj(required=["z"]), [{}, {"a": 1}, {"z": 2}]),
    "closed": (
        obj(properties={"a": INT}, additionalProperties=False),
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}, {"a": None}],
    ),
    "additional": (
        obj(properties={"a": INT}, additionalProperties=STR),
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": "x"}, {"b": "x"}, {"a": "x"}],
    ),
    "additional only": (obj(additionalProperties=STR), [{}, {"a": 1}, {"b": "x"}]),
    "patternProperties": (
        obj(patternProperties={"^x_": INT}, additionalProperties=False),
        [{}, {"x_a": 1}, {"x_a": "s"}, {"y": 1}],
    ),
    "minProperties of several": (
        obj(properties={"a": INT}, required=["a"], minProperties=1, maxProperties=2),
        [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}],
    ),
    "minProperties": (obj(minProperties=1), [{}, {"a": 1}, {"a": 1, "b": 2}]),
    "minProperties closed": (
        obj(properties={"a": INT, "b": INT}, minProperties=2, additionalProperties=False),
        [{}, {"a": 1}, {"a": 1, "b": 2}],
    ),
    "maxProperties": (obj(maxProperties=1), [{}, {"a": 1}, {"a": 1, "b": 2}]),
    "items": (arr(items=INT), [[], [1], ["a"], [1, 2, 3]]),
    "minItems": (arr(minItems=2), [[], [1], [1, 2], [1, 2, 3]]),
    "maxItems": (arr(items=INT, maxItems=2), [[], [1], [1, 2], [1, 2, 3]]),
    "prefixItems": (
        arr(prefixItems=[INT, STR]),
        [[], [1], [1, "a"], [1, "a", None], ["a"], [1, 2]],
    ),
    "prefixItems and items": (arr(prefixItems=[INT], items=STR), [[], [1], [1, "a"], [1, 2]]),
    "prefixItems alone": (arr(prefixItems=[INT], items=False), [[], [1], [1, 2]]),
    "prefixItems counted": (
        arr(prefixItems=[INT], items=STR, minItems=2, maxItems=3),
        [[], [1], [1, "a"], [1, "a", "b"], [1, "a", "b", "c"]],
    ),
    "prefixItems cut": (arr(prefixItems=[INT, INT], maxItems=1), [[], [1], [1, 2]]),
    "anyOf": ({"anyOf": [INT, string(maxLength=1)]}, [1, "a", "aa", None]),
    "anyOf beside properties": (
        obj(properties={"a": INT}, anyOf=[{"required": ["a"]}, {"required": ["b"]}]),
        [{}, {"a": 1}, {"b": 1}, {"c": 1}],
    ),
    "anyOf beside a type": (
        string(anyOf=[{"maxLength": 1}, {"minLength": 3}]),
        ["a", "aa", "aaa", 1],
    ),
    "oneOf": ({"oneOf": [INT, STR]}, [1, "a", None]),
    "oneOf by a constant": (
        {
            "oneOf": [
                obj(properties={"k": {"const": "a"}, "x": INT}, required=["k"]),
                obj(properties={"k": {"const": "b"}, "x": STR}, required=["k"]),
            ]
        },
        [{"k": "a", "x": 1}, {"k": "b", "x": 1}, {"k": "b", "x": "s"}, {"k": "c"}],
    ),
    "allOf": (
        {"allOf": [obj(properties={"a": INT}, required=["a"]), obj(required=["b"])]},
        [{"a": 1}, {"a": 1, "b": 1}, {"a": "x", "b": 1}],
    ),
    "allOf numbers": ({"allOf": [{**INT, "minimum": 3}, {"maximum": 5}]}, [2, 3, 5, 6]),
    "allOf one": ({"allOf": [INT]}, [2, "a"]),
    "$ref": ({"$defs": {"x": INT}, **arr(items={"$ref": "#/$defs/x"})}, [[1], ["a"]]),
    "$ref into definitions": (
        {"definitions": {"x": INT}, **arr(items={"$ref": "#/definitions/x"})},
        [[1], ["a"]],
    ),
    "$ref to the root": (
        obj(properties={"c": {"$ref": "#"}, "v": INT}, additionalProperties=False),
        [{}, {"c": {"v": 1}}, {"c": {"v": "x"}}, {"c": {"c": {}}}],
    ),
    "$ref recursion": (
        LIST,
        [{"v": 1, "next": None}, {"v": 1, "next": {"v": 2, "next": None}}, {"v": 1, "next": {}}],
    ),
    "$ref with siblings": ({"$defs": {"x": INT}, "$ref": "#/$defs/x", "minimum": 5}, [4, 5]),
    "$ref into properties": (
        obj(properties={"x": INT, "y": {"$ref": "#/properties/x"}}, additionalProperties=False),
        [{"y": 1}, {"y": "s"}],
    ),
    "$ref escaped": ({"$defs": {"a/b~c": INT}, "$ref": "#/$defs/a~1b~0c"}, [1, "a"]),
    "names to escape": (
        obj(properties={'é"\n': INT}, required=['é"\n'], additionalProperties=False),
        [{'é"\n': 1}, {}],
    ),
    "format of a number": ({**INT, "format": "int32"}, [1, "a"]),
    "format of strings on a number": (
        {"type": ["integer", "null"], "format": "date"},
        [1, None, "a"],
    ),
    "format of nobody": (string(format="colour"), ["a", 1]),
    "format beside an enum": ({"enum": ["a", 1], "format": "colour"}, ["a", 1, "b"]),
    **{
        f"format {name}": (string(format=name), [good, bad])
        for name, good, bad in (
            ("date", "2020-01-31", "2020-1-1"),
            ("date-time", "2020-01-31T10:00:00Z", "yesterday"),
            ("time", "10:00:00Z", "ten"),
            ("duration", "P1D", "a day"),
            ("email", "a@b.co", "a at b"),
            ("hostname", "a.example", "a b"),
            ("ipv4", "1.2.3.4", "1.2.3.256"),
            ("ipv6", "::1", "1.2"),
            ("uri", "http://a.example/b", "a b"),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123"),
        )
    },
}


def judged(name: str, schema: Any, value: Any) -> bool:
    if (
        name.removeprefix("format ") in FORMATS
    ):  # jsonschema checks few of them without further libraries
        return bool(value == CASES[name][1][0])
    return jsonschema.Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("name", CASES)
def test_a_keyword_is_judged_as_the_standard_says(bench, name: str) -> None:
    schema, values = CASES[name]
    spec = GrammarSpec.json_schema(schema)
    refused = bench.backend.refusal(spec)
    if refused is not None:
        assert bench.backend.__class__.__name__ == "XGrammar" or "Properties" in refused, refused
        assert "JSON Schema keyword" in refused
        return
    grammar = bench.compile(spec)
    verdicts = {judged(name, schema, value) for value in values}
    assert True in verdicts, "a case shows what is valid"
    for value in values:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        valid, accepted = judged(name, schema, value), bench.accepts(grammar, text)
        assert valid or not accepted, f"{text} is invalid"
        if bench.backend.__class__.__name__ == "LLGuidance":
            assert accepted == valid, f"{text} is valid"


#: Random text does not find its way to where these may end.
ENDLESS = {"pattern alternatives"}


@pytest.mark.parametrize("name", sorted(CASES.keys() - ENDLESS))
def test_random_texts_are_valid(bench, name: str) -> None:
    schema, _ = CASES[name]
    spec = GrammarSpec.json_schema(schema)
    if bench.backend.refusal(spec) is not None:
        return
    grammar = bench.compile(spec)
    for seed in range(3):
        value = json.loads(bench.random_text(grammar, seed))
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


#: Schemas that no backend serves, and the name that the refusal must give.
REFUSED = {
    "uniqueItems": arr(uniqueItems=True),
    "contains": arr(contains=INT),
    "not": {**INT, "not": {"const": 5}},
    "if": {**INT, "if": {"minimum": 5}, "then": {"multipleOf": 2}},
    "dependentRequired": obj(dependentRequired={"a": ["b"]}),
    "dependentSchemas": obj(dependentSchemas={"a": obj()}),
    "dependencies": obj(dependencies={"a": ["b"]}),
    "propertyNames": obj(propertyNames={"pattern": "^a"}),
    "unevaluatedProperties": obj(unevaluatedProperties=False),
    "unevaluatedItems": arr(unevaluatedItems=False),
    "$dynamicRef": {"$dynamicRef": "#x"},
    "format": string(format="iri"),
    "minProperties": obj(minProperties=2),
    "x-guidance": {"x-guidance": {"lenient": True}, **INT},
    "enum": {"enum": ["a\x01"]},
    "minimum": {**INT, "minimum": 10**20},
    "$id": {"$defs": {"x": {"$id": "x", **INT}}, "$ref": "#/$defs/x"},
    "properties": obj(properties={"a\x00": INT}),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("deep", [False, True])
def test_what_is_not_honored_is_refused_by_name(bench, name: str, deep: bool) -> None:
    schema = REFUSED[name]
    if deep and "$ref" not in schema:
        schema = arr(items=obj(properties={"inner": schema}, additionalProperties=False))
    refusal = bench.backend.refusal(GrammarSpec.json_schema(schema))
    assert refusal is not None
    assert f"{name!r}" in refusal
    assert ("#/items/properties/inner" in refusal) == (deep and "$ref" not in schema)


#: Schemas whose numbers one of the backends would read as others, or crash over.
LARGE = [
    {"const": 2**53 + 1},
    {"const": -(2**63)},
    {"enum": [{"a": [2**53 + 1]}, -(2.0**63), 2**63 - 1]},
    {**INT, "minimum": -(2**63) + 1, "maximum": -(2**63) + 5},
    {"type": "number", "minimum": 1e-7, "maximum": 2e-7},
    {**INT, "multipleOf": 1.5},
    {"type": "number", "exclusiveMinimum": 5, "maximum": 5.01},
    {"type": "number", "minimum": -0.5, "exclusiveMaximum": 0},
]


@pytest.mark.parametrize("schema", LARGE, ids=str)
def test_numbers_are_kept_exactly_or_refused(bench, schema: dict[str, Any]) -> None:
    spec = GrammarSpec.json_schema(schema)
    refused = bench.backend.refusal(spec)
    if refused is not None:
        assert "JSON Schema keyword" in refused
        return
    grammar = bench.compile(spec)
    for bound in {"exclusiveMinimum", "exclusiveMaximum"} & set(schema):
        assert not bench.accepts(grammar, str(schema[bound]))
    for seed in range(8):
        text = bench.random_text(grammar, seed)
        assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text


@pytest.mark.parametrize("schema", LARGE, ids=str)
def test_each_backend_refuses_what_it_would_round(schema: dict[str, Any]) -> None:
    assert unsupported(schema, LLGUIDANCE, 9) or unsupported(schema, XGRAMMAR, 9)


def test_definitions_that_nothing_uses_are_not_judged(bench) -> None:
    schema = {"$defs": {"x": arr(uniqueItems=True)}, **INT}
    assert bench.backend.refusal(GrammarSpec.json_schema(schema)) is None


def test_every_keyword_of_the_standard_is_known() -> None:
    known = ANNOTATIONS | ASSERTIONS
    for validator in (
        jsonschema.Draft202012Validator,
        jsonschema.Draft7Validator,
        jsonschema.Draft4Validator,
    ):
        vocabulary = set(validator.VALIDATORS)
        assert vocabulary <= known, vocabulary - known
    assert not ANNOTATIONS & ASSERTIONS
    assert set(LLGUIDANCE) <= ASSERTIONS
    assert set(XGRAMMAR) <= set(LLGUIDANCE)
    assert all(f"format {name}" in CASES for name in FORMATS)


def test_every_keyword_that_is_honored_has_a_case(bench) -> None:
    def names(schema: Any) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(names, schema))
        if isinstance(schema, dict):
            return set(schema).union(*map(names, schema.values()))
        return set()

    table = {"LLGuidance": LLGUIDANCE, "XGrammar": XGRAMMAR}[bench.backend.__class__.__name__]
    shown: set[str] = set()
    for schema, _ in CASES.values():
        if bench.backend.refusal(GrammarSpec.json_schema(schema)) is None:
            shown |= names(schema)
    assert set(table) - shown <= {"additionalItems"}


def test_schemas_are_counted() -> None:
    many = {"anyOf": [{"const": i} for i in range(20)]}
    assert unsupported(many, LLGUIDANCE, 21) is None
    assert unsupported(many, LLGUIDANCE, 20) == "more than 20 subschemas"
    assert unsupported(False, LLGUIDANCE, 20) == "the schema false allows nothing"
