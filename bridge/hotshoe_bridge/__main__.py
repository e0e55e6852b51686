"""`python -m hotshoe_bridge`: which candidates of a platform reach which host, and what cannot."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from hotshoe.cli.table import table
from hotshoe.errors import UserError
from hotshoe_bridge.hosts import HOSTS, NO, PROVED, reach
from hotshoe_bridge.operations import Operations


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="hotshoe_bridge", description=__doc__)
    parser.add_argument("--platform", default="auto", help="platform whose candidates are bridged")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(words)
    try:
        operations = Operations(args.platform)
    except UserError as error:
        print(f"hotshoe_bridge: error: {error}", file=sys.stderr)
        return 2
    offered = operations.offered()
    found = {
        slot: {"candidates": names, **{host: reach(slot, host) for host in HOSTS}}
        for slot, names in offered.items()
    }
    if args.json:
        print(json.dumps({"platform": operations.platform, "slots": found, "proved": PROVED}))
        return 0
    rows = [
        (slot, ", ".join(names) or "reference", host, reach(slot, host))
        for slot, names in offered.items()
        for host in HOSTS
    ]
    reached = [row for row in rows if not row[3].startswith(NO)]
    left = [(*row[:1], *row[2:]) for row in rows if row[3].startswith(NO)]
    print(table(("slot", "candidates", "host", "as"), reached))
    print()
    print(
        table(("slot", "host", "not bridged"), [(s, h, why.removeprefix(NO)) for s, h, why in left])
    )
    print()
    print(table(("host", "numbers that were compared"), list(PROVED.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
