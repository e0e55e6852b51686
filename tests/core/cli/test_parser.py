"""Entries, dotted flags and unknown flags."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.cli.parser import EntryAction, Parser, expand_dotted, json_or_text, merged
from hotshoe.errors import ConfigError


@pytest.fixture
def parser() -> Parser:
    parser = Parser("hotshoe test", "a test")
    parser.add_argument("word", nargs="?")
    parser.add_argument("--number", type=int)
    parser.add_argument("--entries", action=EntryAction, parse=json_or_text, default=None)
    parser.add_argument("--texts", action=EntryAction, parse=str, default=argparse.SUPPRESS)
    return parser


@pytest.mark.parametrize(
    ("words", "entries"),
    [
        (["--entries", "a=1"], {"a": 1}),
        (["--entries", "a.b=x", "--entries", "a.c=true"], {"a": {"b": "x", "c": True}}),
        (
            ["--entries", '{"a": {"b": [1, 2]}}', "--entries.a.c", "null"],
            {"a": {"b": [1, 2], "c": None}},
        ),
        (["--entries.a.b", "2.5"], {"a": {"b": 2.5}}),
        (["--entries.a.b=x=y"], {"a": {"b": "x=y"}}),
        (["--entries", "a="], {"a": ""}),
        (["--entries", "a=1", "--entries", "a=2"], {"a": 2}),
    ],
)
def test_entries(parser: Parser, words: list[str], entries: dict) -> None:
    assert parser.parse(words).entries == entries


def test_text_entries_stay_text(parser: Parser) -> None:
    assert parser.parse(["--texts", "a=1"]).texts == {"a": "1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--entries", "a"], "'a' has no key and value"),
        (["--entries", "=1"], "no key and value"),
        (["--entries", "a..b=1"], "no key and value"),
        (["--entries", "{"], "give KEY=VALUE or a JSON object"),
        (["--entries.a"], "--entries.a needs a value"),
        (["--number", "x"], "invalid int value: 'x'"),
        (["--num", "3"], r"unknown flag --num.*did you mean --number\?"),
        (["one", "two"], "unrecognized arguments: two"),
    ],
)
def test_mistakes(parser: Parser, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parser.parse(words)


def test_words_after_a_double_dash_are_not_flags(parser: Parser) -> None:
    assert parser.parse(["--number", "3", "--", "--no-flag"]).word == "--no-flag"


def test_text_that_starts_with_dashes_but_has_spaces_is_not_a_flag(parser: Parser) -> None:
    assert parser.parse(["-- or so"]).word == "-- or so"


def test_only_entry_flags_are_dotted() -> None:
    assert expand_dotted(["--a.b", "1", "--c.d", "2", "e.f"], {"--a"}) == [
        "--a",
        "b=1",
        "--c.d",
        "2",
        "e.f",
    ]


KEYS = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=3)
TREES = st.recursive(st.integers(), lambda inner: st.dictionaries(KEYS, inner, max_size=3))


def flatten(tree: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for key, value in tree.items() for k, v in flatten(value, (*path, key)).items()}


@given(st.dictionaries(KEYS, TREES, max_size=3), st.dictionaries(KEYS, TREES, max_size=3))
def test_merging_keeps_the_new_and_what_it_does_not_touch(old: dict, new: dict) -> None:
    before = (flatten(old), flatten(new))
    result = flatten(merged(old, new))
    assert (flatten(old), flatten(new)) == before
    assert before[1].items() <= result.items()
    for path, value in before[0].items():
        prefixes = {path[:i] for i in range(len(path) + 1)}
        replaced = any(p in prefixes or p[: len(path)] == path for p in before[1])
        assert replaced or result[path] == value


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_json_values_are_read_as_such(value: object) -> None:
    assert json_or_text(str(value).lower()) == value
