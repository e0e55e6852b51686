"""Specifications of grammars are bounded when they are built, and equal ones are one."""

import math

import pytest

from hotshoe.errors import RequestError
from hotshoe.types import GrammarSpec
from hotshoe.types.grammar import MAX_AFTER, MAX_AFTER_TOKENS, MAX_GRAMMAR_BYTES


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("yaml", "x"), "kind must be one of json_object, text"),
        (("regex", 3), "value must be text, not int"),
        (("regex", ""), "regex takes a non-empty value"),
        (("json_object", "x"), "json_object takes no value"),
        (("regex", "\ud800"), "unpaired surrogate"),
        (("regex", "x" * (MAX_GRAMMAR_BYTES + 1)), "at most 1048576 are allowed"),
        (("regex", "x", 7), "after takes at most 16"),
        (("regex", "x", [[1]] * (MAX_AFTER + 1)), "after takes at most 16"),
        (("regex", "x", [[]]), "sequences of 1 to 64"),
        (("regex", "x", [[1] * (MAX_AFTER_TOKENS + 1)]), "sequences of 1 to 64"),
        (("regex", "x", [[-1]]), "after takes token ids, not -1"),
        (("regex", "x", [[True]]), "after takes token ids, not True"),
        (("regex", "x", (), 3), "backend must be a name"),
        (("regex", "x", (), None, 41), "max_blanks must be 0 to 40, not 41"),
        (("regex", "x", (), None, True), "max_blanks must be 0 to 40, not True"),
    ],
)
def test_a_grammar_is_bounded(arguments, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        GrammarSpec(*arguments)
    assert caught.value.field == "grammar"


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (((), 3), "need after"),
        (([[1]], -1), "free_tokens is a number of tokens"),
        (([[1]], True), "free_tokens is a number of tokens"),
        (([[1]], 3, [[]]), "opening takes sequences of 1 to 64"),
    ],
)
def test_a_limit_of_free_text_is_bounded(arguments, match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        GrammarSpec.text(*arguments)
    assert caught.value.field == "grammar"


def test_what_is_compiled_has_no_free_text() -> None:
    spec = GrammarSpec("regex", "x", [[1]], free_tokens=3, opening=[[2]])
    assert spec.bare == GrammarSpec.regex("x")


def test_grammars_from_values() -> None:
    schema = {"type": "string", "const": "é"}
    spec = GrammarSpec.json_schema(schema, after=[[1, 2]])
    assert spec == GrammarSpec.json_schema('{"type":"string","const":"é"}', after=((1, 2),))
    assert {spec: 1}[spec] == 1
    assert GrammarSpec.choice(["a", "b"]).value == '["a","b"]'
    assert GrammarSpec.choice("one").value == '["one"]'
    for bad in ([], [""], [3]):
        with pytest.raises(RequestError, match="at least one string"):
            GrammarSpec.choice(bad)
    for bad in ({"const": math.nan}, {"const": {1}}):
        with pytest.raises(RequestError, match="cannot be written as JSON"):
            GrammarSpec.json_schema(bad)
