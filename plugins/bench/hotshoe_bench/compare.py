"""`hotshoe bench compare`: two results of one benchmark side by side, as ratios."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hotshoe.cli.session import say
from hotshoe.cli.table import table
from hotshoe.errors import ConfigError

#: Where the benchmarks keep their numbers.
_NUMBERS = ("summary", "median")
SETTINGS = ("workload", "engine", "server")


class Compare:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        for name, text in (("before", "file to divide by"), ("after", "file to be divided")):
            parser.add_argument(name, type=Path, metavar=name.upper(), help=text)

    def run(self, args: Namespace) -> int:
        before, after = read(args.before), read(args.after)
        if before["benchmark"] != after["benchmark"]:
            raise ConfigError(
                f"{args.before} is of bench {before['benchmark']}, "
                f"{args.after} of bench {after['benchmark']}; give two results of one benchmark"
            )
        for line in differences(before, after):
            say(line)
        rows = ratios(numbers(before), numbers(after))
        if not rows:
            raise ConfigError(
                f"{args.before} and {args.after} have no number in common; give results of equal "
                "loads, such as the same --concurrency"
            )
        print(table(("", *labels([args.before, args.after]), "ratio"), rows))
        return 0


def labels(paths: Sequence[Path]) -> list[str]:
    """Return names of results: those of their files, or whole paths where files share a name."""
    stems = [path.stem for path in paths]
    return stems if len(set(stems)) == len(paths) else [str(path) for path in paths]


def read(path: Path) -> dict[str, Any]:
    """Read a file that `--output-json` wrote.

    Raises:
        ConfigError: It is unreadable, or no benchmark's result.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"cannot read {path}: it is no JSON ({error}); give a file that --output-json wrote"
        ) from None
    if not _is_result(value):
        raise ConfigError(f"{path} is no result of `hotshoe bench`; write one with --output-json")
    return value


def _is_result(value: Any) -> bool:
    """Tell whether a benchmark may have written it: a name, objects of settings, numbers."""
    if not isinstance(value, dict) or not isinstance(value.get("benchmark"), str):
        return False
    parts = [value[key] for key in (*_NUMBERS, *SETTINGS) if key in value]
    if not all(isinstance(part, dict) for part in parts):
        return False
    found = numbers(value)
    return bool(found) and all(type(number) in (int, float) for number in found.values())


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return what was measured, by name."""
    return next((dict(result[key]) for key in _NUMBERS if key in result), {})


def ratios(before: Mapping[str, float], after: Mapping[str, float]) -> list[tuple[object, ...]]:
    """Return rows of name, both values and their ratio, for what both measured."""
    return [
        (name, value, after[name], f"{after[name] / value:.3f}" if value else "-")
        for name, value in before.items()
        if name in after
    ]


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name the settings that differ, but for the seed."""
    lines = []
    for part in SETTINGS:
        old, new = before.get(part, {}), after.get(part, {})
        lines += [
            f"{part}: {name} is {old.get(name)} and {new.get(name)}"
            for name in sorted({*old, *new})
            if old.get(name) != new.get(name) and name != "seed"
        ]
    return lines
