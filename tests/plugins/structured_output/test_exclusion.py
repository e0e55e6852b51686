"""Branches of `oneOf`: those that exclude each other are served, all others refused."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.types import GrammarSpec
from hotshoe_structured_output.exclusion import MAX_WORK, undecided
from hotshoe_structured_output.llguidance_backend import LLGuidance


def obj(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


A, B = {"const": "a"}, {"const": "b"}
INT, STR = {"type": "integer"}, {"type": "string"}
EXCLUSIVE: dict[str, Any] = {
    "types": {"oneOf": [INT, STR, {"type": ["null", "boolean"]}]},
    "constants": {"oneOf": [A, B, {"enum": ["c", 1]}]},
    "a constant and a type": {"oneOf": [A, INT]},
    "a discriminator": {"oneOf": [obj("k", k=A, x=INT), obj("k", k=B, x=STR)]},
    "a discriminator by reference": {
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
        "$defs": {"a": obj("k", k={"$ref": "#/$defs/tag"}), "b": obj("k", k=B), "tag": A},
    },
    "a discriminator of the whole": {
        **obj("k", k=STR),
        "oneOf": [{"properties": {"k": A}}, {"properties": {"k": B}}],
    },
    "one that is optional": {"oneOf": [obj("k", k=A), obj(k=B)]},
    "a deeper discriminator": {"oneOf": [obj("h", h=obj("k", k=A)), obj("h", h=obj("k", k=B))]},
    "a property that is closed out": {
        "oneOf": [obj("a", a=INT), {**obj("b", b=INT), "additionalProperties": False}]
    },
    "a property that is forbidden": {"oneOf": [obj("a", a=INT), obj("b", a=False, b=INT)]},
    "bounds": {
        "oneOf": [{**INT, "maximum": 3}, {**INT, "exclusiveMinimum": 3}, {**STR, "minLength": 1}]
    },
    "lengths": {"oneOf": [{**STR, "maxLength": 2}, {**STR, "minLength": 3}]},
    "inner alternatives": {"oneOf": [{"anyOf": [INT, A]}, {"oneOf": [{"type": "null"}, B]}]},
    "parts": {"oneOf": [{"allOf": [obj(), obj("k", k=A)]}, obj("k", k=B)]},
    "nothing": {"oneOf": [INT, False]},
}
UNDECIDED: dict[str, Any] = {
    "a number and an integer": {"oneOf": [INT, {"type": "number"}]},
    "equal numbers": {"oneOf": [{"const": 1}, {"const": 1.0}]},
    "an optional discriminator": {"oneOf": [obj(k=A), obj(k=B)]},
    "a discriminator without a type": {
        "oneOf": [{"required": ["k"], "properties": {"k": c}} for c in (A, B)]
    },
    "required alone": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "patterns": {"oneOf": [{**STR, "pattern": "^a"}, {**STR, "pattern": "^b"}]},
    "bounds that touch": {"oneOf": [{**INT, "maximum": 3}, {**INT, "minimum": 3}]},
    "everything": {"oneOf": [True, INT]},
    "itself": {"oneOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array"}]},
}


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_branches_that_exclude_each_other(llguidance_bench, name: str) -> None:
    schema = EXCLUSIVE[name]
    assert undecided(schema) is None
    grammar = llguidance_bench.compile(GrammarSpec.json_schema(schema))
    for seed in range(3):
        value = json.loads(llguidance_bench.random_text(grammar, seed))
        jsonschema.validate(value, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("name", UNDECIDED)
def test_others_are_refused_with_their_place(name: str) -> None:
    schema = {"type": "array", "items": UNDECIDED[name]}
    reason = LLGuidance().refusal(GrammarSpec.json_schema(schema))
    assert "'oneOf' has branches 0 and 1 that may hold for the same value (at #/items)" in reason


def test_work_is_bounded() -> None:
    many = {"oneOf": [obj("k", k={"const": i}) for i in range(MAX_WORK // 50)]}
    assert "may hold" in undecided(many)
    few = {"oneOf": [obj("k", k={"const": i}) for i in range(40)]}
    assert undecided(few) is None


STRINGS = [STR, A, B, {**STR, "maxLength": 1}, {**STR, "minLength": 2}]
NUMBERS = [INT, {"type": "number"}, {**INT, "minimum": 2}, {**INT, "maximum": 1}]
LEAVES = st.sampled_from(
    [*STRINGS, *NUMBERS, {"enum": ["a", 1]}, {"type": "null"}, {}, True, False]
)
BRANCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b, r: obj(*r, a=a, b=b), inner, inner, st.sets(st.sampled_from("ab"))),
        st.builds(lambda a: {**obj("a", a=a), "additionalProperties": False}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"properties": {"a": a}, "oneOf": [b]}, inner, inner),
    ),
    max_leaves=4,
)
SMALL = ["a", "b", "ccc", 0, 1, 2, 1.5, None, [], {}]
VALUES = [
    *SMALL,
    *({"a": one} for one in SMALL),
    *({"b": one} for one in SMALL),
    *({"a": one, "b": other} for one, other in itertools.product(SMALL, SMALL)),
]


@settings(max_examples=200, deadline=None)
@given(BRANCHES, BRANCHES)
def test_no_value_follows_two_branches_that_exclude_each_other(one: Any, other: Any) -> None:
    if undecided({"oneOf": [one, other]}) is None:
        first, second = map(jsonschema.Draft202012Validator, (one, other))
        for value in VALUES:
            assert not (first.is_valid(value) and second.is_valid(value)), value
