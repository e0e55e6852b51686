"""Arguments of logits processors: what passes, and how the rest is refused."""

import math

import pytest

from hotshoe.errors import RequestError
from hotshoe.types.arguments import Argument, check_arguments

DECLARED = {
    "on": Argument("boolean"),
    "count": Argument("integer", 0, low=0, high=4),
    "share": Argument("number", low=0.5),
    "free": Argument("number"),
    "mode": Argument("string", choices=("soft", "hard")),
    "text": Argument("string", high=3),
    "ids": Argument("integer", low=0, max_count=2),
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"on": False, "count": 4, "share": 1, "free": -2.5, "mode": "soft", "text": "", "ids": []},
        {"count": 0, "share": 0.5, "text": "abc", "ids": [0, 9]},
    ],
)
def test_what_is_declared_passes(given: dict[str, object]) -> None:
    check_arguments(given, DECLARED)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("on", 1, "true or false, not 1"),
        ("count", True, "an integer, not True"),
        ("count", 1.0, "an integer"),
        ("count", 5, "an integer, at least 0 and at most 4, not 5"),
        ("count", -1, "an integer, at least 0"),
        ("count", None, "an integer"),
        ("share", 0.25, "a number, at least 0.5, not 0.25"),
        ("share", math.nan, "a finite number"),
        ("free", math.inf, "a finite number"),
        ("mode", "loud", "one of soft, hard, not 'loud'"),
        ("text", "abcd", "text, at most 3 long"),
        ("text", "x" * 1000, r"text, at most 3 long, not 'x{99}\.\.\.$"),
        ("ids", 1, "a list of at most 2 entries"),
        ("ids", [1, 2, 3], "a list of at most 2 entries"),
        ("ids", [1, -2], "an integer, at least 0"),
        ("ids", [{}], "an integer"),
    ],
)
def test_what_was_not_declared_is_refused_by_name(name: str, value: object, wanted: str) -> None:
    with pytest.raises(RequestError, match=rf"^extra_args\.{name} must be {wanted}") as caught:
        check_arguments({name: value}, DECLARED)
    assert caught.value.field == f"extra_args.{name}"


def test_unknown_arguments_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(RequestError, match=r"cuont is known to no .*; did you mean count\?") as got:
        check_arguments({"cuont": 1}, DECLARED)
    assert got.value.field == "extra_args.cuont"
    with pytest.raises(RequestError, match="none is loaded"):
        check_arguments({"count": 1}, {})
