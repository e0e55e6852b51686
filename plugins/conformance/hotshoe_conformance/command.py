"""`hotshoe conformance`: runs the kit on a platform. Exit code 1 where something is wrong."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from hotshoe.cli.parser import EntryAction, json_or_text


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
            "--matrix",
            action="store_true",
            help="say what this machine can prove for each target of each platform, run nothing",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")
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
        from hotshoe_conformance.kit import Kit, Options

        options = Options(
            slot=args.slot,
            candidate=args.candidate,
            case=args.case,
            seed=args.seed,
            quick=args.quick,
            platform_options=args.platform_options,
        )
        report = Kit(args.platform, options).run()
        print(json.dumps(report.as_json()) if args.json else report.as_text())
        return 1 if report.defects else 0

    def _matrix(self, args: Namespace) -> int:
        from hotshoe.plugins import PluginManager
        from hotshoe_conformance.matrix import as_text, matrix

        lines = matrix(PluginManager())
        print(json.dumps([line.as_json() for line in lines]) if args.json else as_text(lines))
        return 0
