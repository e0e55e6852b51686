"""Lazy references."""

import sys

import pytest

from hotshoe.lazy import resolve_lazy


def test_imports_only_when_resolved() -> None:
    sys.modules.pop("this_is_not_a_module", None)
    reference = "this_is_not_a_module:thing"
    with pytest.raises(ModuleNotFoundError, match="this_is_not_a_module"):
        resolve_lazy(reference)


def test_finds_the_attribute() -> None:
    assert resolve_lazy("hotshoe.lazy:resolve_lazy") is resolve_lazy
    with pytest.raises(AttributeError):
        resolve_lazy("hotshoe.lazy:nothing")


@pytest.mark.parametrize("text", ["hotshoe.lazy", "hotshoe.lazy:", ":thing", ""])
def test_text_of_another_form_says_what_is_wanted(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 'module:attribute'"):
        resolve_lazy(text)


def test_objects_pass_through() -> None:
    assert resolve_lazy(len) is len
