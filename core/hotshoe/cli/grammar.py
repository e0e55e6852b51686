"""Flags that give the text of `generate` and `chat` a form, and the way to a `GrammarSpec`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotshoe.errors import ConfigError
from hotshoe.types import GrammarSpec

#: Flag -> value's name, help, and what makes the grammar. A value @FILE is read from a file.
FLAGS: dict[str, tuple[str, str, Callable[[Any], GrammarSpec]]] = {
    "json_schema": ("JSON", "follow this JSON Schema", GrammarSpec.json_schema),
    "regex": ("REGEX", "match this regular expression", GrammarSpec.regex),
    "grammar": ("EBNF", "follow this grammar", GrammarSpec.ebnf),
    "structural_tag": ("JSON", "follow schemas between tags", GrammarSpec.structural_tag),
}


def add_grammar_flags(parser: ArgumentParser) -> None:
    """Add the flags, of which one may be given."""
    title = "form of the text (a value @FILE is read from that file)"
    group = parser.add_argument_group(title).add_mutually_exclusive_group()
    for name, (metavar, text, _) in FLAGS.items():
        group.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)
    group.add_argument("--json-object", action="store_true", help="be any JSON object")
    group.add_argument("--choice", action="append", metavar="TEXT", help="be this; may be repeated")


def grammar_spec(args: Namespace) -> GrammarSpec | None:
    """Return the grammar that the flags describe, if any.

    Raises:
        ConfigError: A file cannot be read.
        RequestError: The grammar is malformed.
    """
    if args.json_object:
        return GrammarSpec.json_object()
    if args.choice:
        return GrammarSpec.choice(args.choice)
    for name, (_, _, make) in FLAGS.items():
        value = getattr(args, name)
        if value is not None:
            return make(_read(value))
    return None


def _read(value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {value[1:]}: {error}") from None
