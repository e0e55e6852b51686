"""Argument parsing that says what a mistake might have meant.

A thin layer over argparse: mistakes become ConfigError, unknown flags come with the nearest known
one, and `--hf-overrides.a.b VALUE` is read as `--hf-overrides a.b=VALUE`. Called by `main`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn

from hotshoe.errors import ConfigError
from hotshoe.models.config import merged
from hotshoe.suggest import did_you_mean


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises instead of exiting, and takes no abbreviations."""

    #: What a command does to its words before they are parsed.
    rewrite: Callable[[Sequence[str]], Sequence[str]] = list

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)

    def format_help(self) -> str:
        """Return the help under a usage line that leaves the flags to their groups."""
        words = [action.metavar or action.dest for action in self._get_positional_actions()]
        self.usage = " ".join(["%(prog)s", *(f"[{word}]" for word in words), "[flags]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Turn what argparse found into an exception.

        Raises:
            ConfigError: Always.
        """
        raise ConfigError(f"{message} (see `{self.prog} --help`)")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words after the command's name.

        Raises:
            ConfigError: A flag is unknown, or a value does not fit.
        """
        flags = self._option_string_actions
        words = self._spread(self.rewrite([hyphenated(word) for word in words]))
        for word in words:
            flag = word.partition("=")[0].partition(".")[0]
            if flag == "--":
                break
            if flag.startswith("--") and " " not in flag and flag not in flags:
                self.error(f"unknown flag {flag}{did_you_mean(flag, flags)}")
        dotted = {flag for flag, action in flags.items() if isinstance(action, EntryAction)}
        return self.parse_args(expand_dotted(words, dotted))

    def _spread(self, words: Sequence[str]) -> list[str]:
        """Write `--flag a b` of a list, or of entries, as `--flag a --flag b`, where b can be
        nothing else."""
        several = (ListAction, EntryAction)
        lists = {f for f, a in self._option_string_actions.items() if isinstance(a, several)}
        room: float = sum(
            1 if action.nargs in (None, "?") else math.inf
            for action in self._get_positional_actions()
        )
        if any(word.partition("=")[0] == "--config" for word in words):
            room = 0  # the file may name what would stand there
        spread: list[str] = []
        owed = taking = ""  # the flag whose value comes, and the list that more words go to
        for place, word in enumerate(words):
            if word == "--":
                return [*spread, *words[place:]]
            if owed:
                taking, owed = owed if owed in lists else "", ""
            elif word.startswith("-"):
                flag, equals, _ = word.partition("=")
                action = self._option_string_actions.get(flag.partition(".")[0])
                owed = flag if action is not None and action.nargs != 0 and not equals else ""
                taking = flag if equals and flag in lists else ""
            elif room > 0:
                room, taking = room - 1, ""
            elif taking:
                spread.append(taking)
            spread.append(word)
        return spread


def hyphenated(word: str) -> str:
    """Write `--max_model_len=5` as `--max-model-len=5`; what follows a dot or `=` stays."""
    if not word.startswith("--"):
        return word
    end = min((i for i in (word.find("="), word.find(".")) if i >= 0), default=len(word))
    return word[:end].replace("_", "-") + word[end:]


def integer(text: str) -> int:
    """Read `4096`, `32k` (thousands), `32K` (of 1,024), and M, G and T alike.

    Raises:
        ValueError: It is no such number, or no whole one.
    """
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([kmgt])", text, re.IGNORECASE)
    if not found:
        return int(text)
    power = "kmgt".index(found[2].lower()) + 1
    number = Fraction(found[1]) * (1000 if found[2].islower() else 1024) ** power
    if number.denominator != 1:
        raise ValueError(f"{text} is no whole number")
    return int(number)


class EntryAction(argparse.Action):
    """Collects `KEY=VALUE` entries, or a whole JSON object, into one mapping.

    Where values are texts, a key may have dots, and one that stands twice with two values is
    refused. Other mappings are nested, and the last value wins.

    Args:
        parse: Turns the text of a value into the value; `str` leaves it.
        lone: The key of a word that names none; None: there is no such word.
    """

    def __init__(
        self, *args: Any, parse: Callable[[str], Any], lone: str | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._parse = parse
        self._lone = lone

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            entries = self._entries(values)
        except (ValueError, RecursionError) as error:
            raise argparse.ArgumentError(
                self, f"{error}; give KEY=VALUE or a JSON object"
            ) from None
        before = getattr(namespace, self.dest, {})
        for key, value in entries.items():
            if self._parse is str and before.get(key, value) != value:
                raise argparse.ArgumentError(self, f"{key!r} stands there twice; leave one out")
        setattr(namespace, self.dest, merged(before, entries))

    def _entries(self, text: str) -> dict[str, Any]:
        if text.startswith("{"):
            return dict(json.loads(text))
        path, equals, value = text.partition("=")
        if not equals and path and self._lone is not None:
            path, equals, value = self._lone, "=", path
        keys = [path] if self._parse is str else path.split(".")
        if not equals or not all(keys):
            raise ValueError(f"{text!r} has no key and value")
        entries: Any = self._parse(value)
        for key in reversed(keys):
            entries = {key: entries}
        return dict(entries)


class ListAction(argparse.Action):
    """Collects values, one or a JSON list of them at a time; integers also as 1,2,3.

    Args:
        parse: The type of a value, text or integer.
    """

    def __init__(self, *args: Any, parse: type[Any], **options: Any) -> None:
        super().__init__(*args, **options)
        self._parse = parse

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        try:
            single = values.split(",") if self._parse is int else [values]
            found = listed(values, self._parse) or [self._parse(value) for value in single]
        except ValueError:
            wanted = f"{self.metavar}, or a JSON list of these"
            raise argparse.ArgumentError(self, f"{values!r} is not {wanted}") from None
        setattr(namespace, self.dest, [*getattr(namespace, self.dest, ()), *found])


def listed(text: str, kind: type[Any]) -> list[Any]:
    """Return the entries of `["a", "b"]`, none when the text is no such list."""
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return []
    alike = isinstance(found, list) and all(type(value) is kind for value in found)
    return list(found or ()) if alike else []


def expand_dotted(words: Sequence[str], flags: set[str]) -> list[str]:
    """Rewrite `--flag.a.b value` and `--flag.a.b=value` as `--flag a.b=value`.

    Raises:
        ConfigError: The value is missing.
    """
    expanded: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        flag, dot, path = name.partition(".")
        if not dot or flag not in flags:
            expanded.append(word)
            continue
        if not equals:
            following = next(rest, None)
            if following is None:
                raise ConfigError(f"{word} needs a value")
            value = following
        expanded += [flag, f"{path}={value}"]
    return expanded


def entry_text(value: Any) -> str:
    """Write a value as `json_or_text` reads it: text as it is, unless that were read as JSON."""
    if isinstance(value, str) and json_or_text(value) == value:
        return value
    return json.dumps(value)


def json_or_text(text: str) -> Any:
    """Read a value as JSON where it is JSON (`2`, `true`, `[1]`), else as the text it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
