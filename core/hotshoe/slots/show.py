"""Prints specifications and verdicts for people, in commands and in an engine's description."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

from hotshoe.slots.verdict import Verdict

#: Without blanks, but for those within parentheses.
_FIELD = re.compile(r"(?:[^\s()]|\((?:[^()]|\([^()]*\))*\))+")


def show_spec(spec: Any) -> str:
    """Print a specification without the fields that have their default, or are not to be shown."""
    values = ((f.name, getattr(spec, f.name), f.default) for f in fields(spec) if f.repr)
    return " ".join(f"{name}={_show(value)}" for name, value, default in values if value != default)


def show_verdict(verdict: Verdict) -> str:
    """Print what a candidate answered that was not chosen."""
    if verdict.defect:
        return f"defective: {verdict.reason}"
    if verdict.score is None:
        return f"refused: {verdict.reason}"
    return f"score {verdict.score}" + (f": {verdict.reason}" if verdict.reason else "")


def words_of(text: str) -> list[str]:
    """Split what `show_spec` has printed into fields."""
    return _FIELD.findall(text)


def _show(value: Any) -> str:
    """Print a field; one that is a record itself by its name, if it has one."""
    if not is_dataclass(value):
        return str(value)
    return str(getattr(value, "name", f"({show_spec(value)})"))
