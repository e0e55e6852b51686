"""Entries, dotted flags and unknown flags."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.cli.parser import (
    EntryAction,
    ListAction,
    Parser,
    entry_text,
    expand_dotted,
    hyphenated,
    integer,
    json_or_text,
)
from hotshoe.errors import ConfigError


@pytest.fixture
def parser() -> Parser:
    parser = Parser("hotshoe test", "a test")
    parser.add_argument("word", nargs="?")
    parser.add_argument("--number", type=int)
    parser.add_argument(
        "--entries", action=EntryAction, parse=json_or_text, default=argparse.SUPPRESS
    )
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
        (["word", "--entries", "a=1", "b=2", "--number", "3"], {"a": 1, "b": 2}),
    ],
)
def test_entries(parser: Parser, words: list[str], entries: dict) -> None:
    assert parser.parse(words).entries == entries


def test_text_entries_stay_text(parser: Parser) -> None:
    assert parser.parse(["--texts", "a=1"]).texts == {"a": "1"}
    assert parser.parse(["--texts", "a.b=1", "--texts.c.d=2"]).texts == {"a.b": "1", "c.d": "2"}
    assert parser.parse(["--texts", "a=1", "--texts", "a=1"]).texts == {"a": "1"}


@pytest.mark.parametrize(
    "value", [3, "3", True, "true", None, "null", "avx2", "", "0-3", [1, "a"], {"a": 1.5}, '"x"']
)
def test_written_values_are_read_as_they_were(value: object) -> None:
    assert json_or_text(entry_text(value)) == value


def test_plain_text_is_written_as_it_is() -> None:
    assert [entry_text(value) for value in ("avx2", 3, "3")] == ["avx2", "3", '"3"']


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--entries", "a"], "'a' has no key and value"),
        (["--entries", "=1"], "no key and value"),
        (
            ["--texts", "a=1", "--texts", "b=1", "--texts", "a=2"],
            "--texts: 'a' stands there twice; leave one out",
        ),
        (["--texts", '{"a": "1"}', "--texts.a", "2"], "'a' stands there twice"),
        (["--entries", "a..b=1"], "no key and value"),
        (["--entries", "{"], "give KEY=VALUE or a JSON object"),
        (["--entries", '{"a":' + "[" * 100_000], "give KEY=VALUE or a JSON object"),
        (["--entries", "a=" + "[" * 100_000], "give KEY=VALUE or a JSON object"),
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


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
def test_json_values_are_read_as_such(value: object) -> None:
    assert json_or_text(str(value).lower()) == value


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--names", "a", "--names", "b"], ["a", "b"]),
        (["--names", '["a", "b"]', "--names", "c"], ["a", "b", "c"]),
        (["--names", "[a"], ["[a"]),
        (["--names", "[1]"], ["[1]"]),
        (["--names", "[]"], ["[]"]),
        (["--names", "[" * 5000], ["[" * 5000]),
    ],
)
def test_lists_come_one_by_one_or_as_json(words: list[str], found: list[str]) -> None:
    parser = Parser("hotshoe test", "a test")
    parser.add_argument("--names", action=ListAction, parse=str, default=argparse.SUPPRESS)
    assert parser.parse(words).names == found


def test_lists_of_numbers() -> None:
    parser = Parser("hotshoe test", "a test")
    parser.add_argument(
        "--ids", action=ListAction, parse=int, metavar="N", default=argparse.SUPPRESS
    )
    assert parser.parse(["--ids", "1", "--ids", "[2, 3]"]).ids == [1, 2, 3]
    for word in ("x", '["a"]', "[1.5]", "[true]"):
        with pytest.raises(ConfigError, match="is not N, or a JSON list of these"):
            parser.parse(["--ids", word])


@pytest.mark.parametrize(
    ("words", "model", "names"),
    [
        (["m", "--names", "a", "b"], "m", ["a", "b"]),
        (["--names", "a", "m"], "m", ["a"]),
        (["--names", "a", "m", "--names", "b", "c"], "m", ["a", "b", "c"]),
        (["m", "--names=a", "b", "--number", "3"], "m", ["a", "b"]),
        (["m", "--names", "--number=3"], None, None),
        (["m", "--number", "3", "b"], None, None),
        (["--config", "f", "--names", "a", "b"], None, ["a", "b"]),
        (["m", "--names", "a", "b", "--config=f"], "m", ["a", "b"]),
    ],
)
def test_a_list_takes_words_that_can_be_nothing_else(words, model, names) -> None:
    parser = Parser("hotshoe test", "a test")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--number", type=int)
    parser.add_argument("--config")
    parser.add_argument("--names", action=ListAction, parse=str, default=argparse.SUPPRESS)
    if names is None:
        with pytest.raises(ConfigError):
            parser.parse(words)
    else:
        found = parser.parse(words)
        assert (found.model, found.names) == (model, names)


def test_underscores_of_flags() -> None:
    assert hyphenated("--max_model_len=a_b") == "--max-model-len=a_b"
    assert hyphenated("--platform_options.memory_fraction") == "--platform-options.memory_fraction"
    assert hyphenated("a_b") == "a_b"


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-1", -1), ("32k", 32_000), ("32K", 32_768), ("2G", 2**31), ("25.6k", 25_600)],
)
def test_numbers_with_a_power(text: str, number: int) -> None:
    assert integer(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1e3", "0.0001k", "1/0k", "32kk", "nan", "infk"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid literal|no whole number"):
        integer(text)
