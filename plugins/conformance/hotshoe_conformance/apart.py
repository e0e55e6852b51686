"""The kit in a process of its own: a kernel that takes it down, or never comes back, is named.

Both sides: `run_apart` starts and watches it, and `main` is what it does. It ends with who started
it, like every process of ours, and takes along what it has started.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from hotshoe.engine.wire.children import ChildProcess, Times, channel_to_owner, when_orphaned
from hotshoe.foreign import ending

COMMAND = (sys.executable, "-m", "hotshoe_conformance.apart")
#: A case of any device takes far less than `silent_s`, even where something is compiled for it.
TIMES = Times(silent_s=900.0, look_s=5.0, exit_s=60.0)
SAY_EVERY_S = 60.0


def run_apart(words: Sequence[str]) -> int:
    """Run `hotshoe conformance` with these words in another process; return its exit code."""
    with tempfile.NamedTemporaryFile("r") as record:
        child = ChildProcess(COMMAND, ["conformance", *words, "--record", record.name])
        try:
            report, hung = watch(child, Path(record.name))
            if not hung:
                child.wait(TIMES.exit_s)
        finally:
            child.kill()
            child.wait(TIMES.killed_s)
            child.connection.close()
        code, text = (child.code, "") if report is None else json.loads(report)
        print(text, end="")
        if child.code is not None and child.code >= 0:
            return int(code)
        how = ending(child.code or -signal.SIGKILL)
        late = f"one case did not end within {TIMES.silent_s:g} s"
        what = late if hung else f"the process was {how}"
        print(f"WRONG: {what}\n  repeat: {record.read() or 'before its first case'}")
        return 1


def watch(child: ChildProcess, record: Path) -> tuple[bytes | None, bool]:
    """Wait for a run.

    Returns:
        Its exit code and what it printed, None if it ended without a word; whether one case has
        taken too long.
    """
    last, same_s = "", 0.0
    while True:
        report = child.connection.fetch(TIMES.look_s)
        if report is not None or child.connection.ended:
            return report, False
        where = record.read_text()
        same_s = same_s + TIMES.look_s if where and where == last else 0.0
        last = where
        if same_s >= TIMES.silent_s:
            return None, True
        if same_s and same_s % SAY_EVERY_S < TIMES.look_s:
            print(f"{same_s:.0f} s in one case: {where}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the command, and send its exit code and what it has printed."""
    from hotshoe.cli.main import main as run

    owner = channel_to_owner()
    when_orphaned(owner, lambda: os.killpg(0, signal.SIGKILL))
    printed = io.StringIO()
    with redirect_stdout(printed):
        code = run(sys.argv[2:])
    owner.send(json.dumps([code, printed.getvalue()]).encode())
    owner.drain()
    return code


if __name__ == "__main__":
    sys.exit(main())
