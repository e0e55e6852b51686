"""Suggestions for misspelt names."""

from hotshoe.suggest import did_you_mean


def test_the_nearest_name() -> None:
    assert did_you_mean("atention", ["linear", "attention"]) == "; did you mean attention?"


def test_nothing_near() -> None:
    assert did_you_mean("xyzzy", ["linear", "attention"]) == ""
    assert did_you_mean("xyzzy", iter([])) == ""
