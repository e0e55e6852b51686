"""Literals become the JSON of the value that Python reads; everything else is malformed."""

import ast
import json
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe_parsers.machine import Machine, Malformed, Reader, Steps
from hotshoe_parsers.python_literals import MAX_DEPTH, literal
from hotshoe_parsers.writer import Writer

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
HOSTILE = st.lists(
    st.sampled_from([*"'\"\\\n [](){}:,.+-_0179eExuUNabfnrtvTj", "'''", "True", "\\x4", "é"]),
    max_size=14,
).map("".join)


def convert(text: str, by_characters: bool = False) -> tuple[str, str]:
    """Return the JSON of a literal, and the text behind it."""
    found: list[str] = []
    rest: list[str] = []

    def program(reader: Reader, writer: Writer) -> Steps[None]:
        yield from literal(reader, found.append)
        yield from reader.rest(rest.append)

    machine = Machine(program)
    for piece in text if by_characters else [text]:
        machine.feed(piece)
    machine.finish()
    return "".join(found), "".join(rest)


def python(text: str) -> object:
    """Return what Python reads, or raise what Python raises; warnings about escapes are none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.literal_eval(text)


@settings(deadline=None)
@given(VALUES)
def test_values_are_kept(value: object) -> None:
    text = f"{value!r};"
    found, rest = convert(text)
    assert (json.loads(found), rest) == (value, ";")
    assert convert(text, by_characters=True) == (found, rest)


@settings(deadline=None, max_examples=500)
@given(HOSTILE)
def test_what_is_accepted_means_what_python_reads(text: str) -> None:
    try:
        found, rest = convert(text)
    except Malformed:
        return
    assert json.loads(found) == python(text.removesuffix(rest))


@pytest.mark.parametrize(
    "text",
    [
        "0", "-7", "1.50", "1.", ".5", "-.5e-3", "1e5", "2.E+3", "True", "None",
        "''", '""', "'a\"b'",
        r"'\n\t\\\'\"\a\b\f\v\r'", r"'\x41\u00e9\U0001F642\101\7\08\d\ '",
        "'a\\\nb'", "'''a\n'b'''",
        '"""a""b"""', "[]", "[1,]", "[ 1 , [ 2 ] ]", "{}", "{'a': 1,}", "{ 'a' : { \"b\" : [] } }",
        "'é🙂'",
    ],
)  # fmt: skip
def test_literals(text: str) -> None:
    found, rest = convert(f"{text};")
    assert (json.loads(found), rest) == (python(text), ";")
    assert convert(f"{text};", by_characters=True) == (found, rest)


@pytest.mark.parametrize(
    "text",
    [
        "", ";", "x", "nan", "-inf", "1_0", "0x1f", "1j", "1-2", "007", "--1",
        "+1", ".", "-", "1..2",
        "٣", "'a", "'a\nb'", "'''a", r"'\x4'", r"'\u12'", r"'\U00110000'",
        r"'\N{DASH}'", "'\\", "b'a'",
        "(1, 2)", "{1: 2}", "{'a'}", "{'a': }", "{'a' 1}", "[1 2]", "[,]", "[1", "{'a': 1", "f(1)",
        "[x for x in y]", "1" * 300, "a" * 300, "[" * (MAX_DEPTH + 2), "lambda: 0", "...",
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_characters", [False, True])
def test_everything_else_is_malformed(text: str, by_characters: bool) -> None:
    with pytest.raises(Malformed):
        convert(f"[{text}", by_characters)


def test_numbers_beyond_floats_stay_as_written() -> None:
    assert math.isinf(json.loads(convert("1e999")[0]))
