"""`hotshoe conformance`: runs the kit on a platform. Exit code 1 where something is wrong.

The kit runs in a process of its own (`apart`), so that a kernel which takes the process down, or
never comes back, is named, too. A single case runs in this one, where a debugger finds it.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from hotshoe.cli.parser import EntryAction, entry_text, json_or_text
from hotshoe.errors import ConfigError
from hotshoe_conformance.apart import run_apart


class Conformance:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--platform", default="auto", metavar="NAME", help="platform to test")
        parser.add_argument("--slot", metavar="SLOT", help="only this slot")
        parser.add_argument("--candidate", metavar="NAME", help="only candidates of this name")
        parser.add_argument("--case", type=int, metavar="N", help="only this case of each slot")
        parser.add_argument(
            "--seed", type=int, metavar="N", help="seed of random cases and values; default: fresh"
        )
        parser.add_argument(
            "--quick", action="store_true", help="small cases only, and no measurements"
        )
        parser.add_argument(
            "--time-limit",
            type=float,
            metavar="SECONDS",
            help="start no case later than this, and say what was left out",
        )
        parser.add_argument(
            "--matrix",
            action="store_true",
            help="say what this machine can prove for each target of each platform, run nothing",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.add_argument(
            "--record",
            type=Path,
            metavar="FILE",
            help="run in this process, and keep the command that repeats the running case there",
        )
        parser.add_argument(
            "--platform-options",
            action=EntryAction,
            parse=json_or_text,
            default={},
            metavar="KEY=VALUE",
            help="options of the platform; may be repeated",
        )

    def run(self, args: Namespace) -> int:
        if args.matrix:
            return self._matrix(args)
        if args.case is None and args.record is None:
            return run_apart(words_of(args))
        if args.case is not None and args.case < 0:
            raise ConfigError(f"--case must be at least 0, not {args.case}")
        from hotshoe_conformance.kit import Kit, Options

        options = Options(
            slot=args.slot,
            candidate=args.candidate,
            case=args.case,
            seed=args.seed,
            quick=args.quick,
            time_limit_s=args.time_limit,
            platform_options=args.platform_options,
            record=args.record,
        )
        report = Kit(args.platform, options, say=_say).run()
        print(json.dumps(report.as_json()) if args.json else report.as_text())
        return 1 if report.defects else 0

    def _matrix(self, args: Namespace) -> int:
        from hotshoe.plugins import PluginManager
        from hotshoe_conformance.matrix import as_text, matrix

        lines = matrix(PluginManager())
        print(json.dumps([line.as_json() for line in lines]) if args.json else as_text(lines))
        return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def words_of(args: Namespace) -> list[str]:
    """Return a command line that says the same."""
    words = []
    for name in ("platform", "slot", "candidate", "seed", "time_limit"):
        value = getattr(args, name)
        words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
    words += [f"--{name}" for name in ("quick", "json") if getattr(args, name)]
    for name, value in args.platform_options.items():
        words += [f"--platform-options.{name}", entry_text(value)]
    return words
