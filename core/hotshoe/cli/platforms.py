"""`hotshoe platforms`: what is installed, what it found, and why something is not usable."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from hotshoe.cli.session import MIB, show_device
from hotshoe.cli.table import table
from hotshoe.platform import Absent, Available, Broken
from hotshoe.plugins.survey import survey

if TYPE_CHECKING:
    from hotshoe.platform import Detection, PlatformStatus


class Platforms:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: Namespace) -> int:
        from hotshoe.plugins.platforms import list_platforms, troubles

        surveyed = survey(platforms=True)
        plugins = surveyed.plugin_manager()
        found = [describe(status) for status in list_platforms(plugins, surveyed.platforms)]
        if args.json:
            print(json.dumps(found))
        elif found:
            names = ("platform", "status", "score", "device", "memory", "distribution", "remarks")
            print(table(names, [[row[name] for name in names] for row in found]))
        else:
            print("no platform is installed; install one, such as hotshoe-platform-cpu")
        for trouble in troubles(plugins):
            print(trouble, file=sys.stderr)
        return 0


def describe(status: PlatformStatus) -> dict[str, Any]:
    """Return a platform's line."""
    word, score, remark = _finding(status.detection)
    facts = status.facts
    features = " ".join(sorted(facts.features)) if facts else ""
    return {
        "platform": status.name,
        "status": word,
        "score": score,
        "device": show_device(facts) if facts else "",
        "memory": f"{facts.memory_bytes / MIB:,.0f} MiB" if facts else "",
        "distribution": status.distribution,
        "remarks": remark or features,
    }


def _finding(detection: Detection) -> tuple[str, str, str]:
    match detection:
        case Available(score):
            return "available", str(score), ""
        case Absent(reason):
            return "absent", "", reason
        case Broken(cause):
            return "broken", "", cause
