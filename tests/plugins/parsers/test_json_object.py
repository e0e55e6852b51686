"""The scanner agrees with Python's JSON reader on what an object is, and on where it ends."""

import json
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe_parsers.json_object import MAX_DEPTH, JsonObject

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)  # fmt: skip
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=5)
TEXTS = st.builds(
    lambda value, escaped, indent: json.dumps(value, ensure_ascii=escaped, indent=indent),
    OBJECTS,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)


def scan(text: str) -> tuple[bool, int, str]:
    scanner = JsonObject()
    end = scanner.advance(text, 0)
    return scanner.done, end, scanner.error


def refuse(name: str) -> NoReturn:
    raise ValueError(name)


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except ValueError:
        return False


@given(TEXTS, st.text(max_size=5))
def test_objects_end_where_they_end(text: str, more: str) -> None:
    assert scan(text + more) == (True, len(text), "")


@given(
    TEXTS,
    st.integers(0, 10**6),
    st.sampled_from([*'{}[],:"\\ 01-+.eEtn/\n\x00\x1fé']),
    st.booleans(),
)
def test_one_wrong_character_is_noticed(text: str, at: int, char: str, insert: bool) -> None:
    at %= len(text)
    changed = text[:at] + char + text[at + (not insert) :]
    done, end, error = scan(changed)
    assert (done and end == len(changed)) == (
        is_object(changed) and changed[0] + changed[-1] == "{}"
    )
    assert not (done and error)


@settings(max_examples=30)
@given(TEXTS)
def test_every_part_is_unfinished(text: str) -> None:
    for end in range(len(text)):
        assert scan(text[:end]) == (False, end, "")


@given(TEXTS)
def test_cuts_change_nothing(text: str) -> None:
    scanner = JsonObject()
    for at, char in enumerate(text):
        assert not scanner.done
        assert scanner.advance(char, 0) == 1, at
    assert scanner.done and not scanner.error


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("[]", 0), ('"a"', 0), (" {}", 0), ("{,", 1), ('{"a",', 4), ('{"a":,', 5), ('{"a":1,}', 7),
        ('{"a":[1,]', 8), ('{"a":]', 5), ("{]", 1), ('{"a":[}', 6), ('{"a":01', 6), ('{"a":-}', 6),
        ('{"a":1.}', 7), ('{"a":.5', 5), ('{"a":1e}', 7), ('{"a":+1', 5), ('{"a":tru}', 8),
        ('{"a":NaN', 5), ('{"a":"\n', 6), ('{"a":"\\x', 7), ('{"a":"\\u00g', 10), ("{'a'", 1),
        ('{"a":1 2', 7), ("{a", 1), ('{"a":1"', 6), ('{"\\q', 3), ("{\u00a0}", 1),
    ],
)  # fmt: skip
def test_errors_are_found_where_they_are(text: str, valid: int) -> None:
    done, end, error = scan(text)
    assert (done, end) == (False, valid)
    assert repr(text[valid]) in error


def test_depth_is_bounded() -> None:
    deepest = '{"a":' + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1) + "}"
    assert scan(deepest) == (True, len(deepest), "")
    done, end, error = scan('{"a":' + "[" * MAX_DEPTH)
    assert (done, end) == (False, len('{"a":') + MAX_DEPTH - 1)
    assert str(MAX_DEPTH) in error
