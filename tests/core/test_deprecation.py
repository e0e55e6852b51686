"""Deprecations say what, when and what to do instead, at the place that is to be changed."""

import pytest

from hotshoe.deprecation import deprecated


def old_name() -> str:
    return deprecated("old_name()", "call new_name()", "0.3")


def test_the_warning_names_the_remedy_and_points_at_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match="is deprecated") as caught:
        text = old_name()
    assert text == ("old_name() is deprecated and will be gone in hotshoe 0.3; call new_name()")
    assert str(caught[0].message) == text
    assert caught[0].filename == __file__
