"""Prints specifications and verdicts for people, in commands and in an engine's description."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from hotshoe.slots.specs import LinearSpec
from hotshoe.slots.verdict import Verdict

#: Characters of a specification with all its records; a longer one is shown without them.
SHORT = 180


def show_spec(spec: Any) -> str:
    """Print a specification without the fields that have their default, or are not to be shown."""
    return _shown(spec, whole=True)


def short_spec(spec: Any) -> str:
    """Print a specification as `show_spec` does, its records as `(...)` if it were too long."""
    text = show_spec(spec)
    return text if len(text) <= SHORT else _shown(spec, whole=False)


def in_words(spec: Any) -> str:
    """Print a matrix by its form and shape, and other specifications as `short_spec` does."""
    if not isinstance(spec, LinearSpec):
        return short_spec(spec)
    x, weight = spec.activation or spec.dtype, spec.weight or spec.dtype
    return f"weights in {weight} [{spec.out_features}, {spec.in_features}] with x in {x}"


def _shown(spec: Any, whole: bool) -> str:
    values = ((f.name, getattr(spec, f.name), f.default) for f in fields(spec) if f.repr)
    shown = ((name, _show(value, whole)) for name, value, default in values if value != default)
    return " ".join(f"{name}={text}" for name, text in shown)


def show_verdict(verdict: Verdict) -> str:
    """Print what a candidate answered that was not chosen."""
    if verdict.defect:
        return f"defective: {verdict.reason}"
    if verdict.score is None:
        return f"refused: {verdict.reason}"
    return f"score {verdict.score}" + (f": {verdict.reason}" if verdict.reason else "")


def words_of(text: str) -> list[str]:
    """Split what `show_spec` has printed into fields: at blanks that no parentheses enclose."""
    words, depth, begin = [], 0, 0
    for place, character in enumerate(f"{text} "):
        depth += (character == "(") - (character == ")")
        if character == " " and depth == 0:
            words.append(text[begin:place])
            begin = place + 1
    return [word for word in words if word]


def _show(value: Any, whole: bool) -> str:
    """Print a field; one that is a record itself by its name, if it has one."""
    if isinstance(value, tuple) and any(isinstance(v, tuple) or is_dataclass(v) for v in value):
        return f"({' '.join(_show(each, whole) for each in value)})"
    if not is_dataclass(value):
        return str(value)
    if hasattr(value, "name"):
        return str(value.name)
    return f"({show_spec(value)})" if whole else "(...)"
