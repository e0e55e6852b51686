"""Draw docs/assets/terminal.svg: commands on the bundled model, and what they print.

Run it in an environment that has everything (`python tools/record_terminal.py`). Nothing is
drawn that was not printed; long outputs are cut after some lines, and the cut is shown.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs/assets/terminal.svg"
#: Words behind `hotshoe`, and how many lines of the output are drawn.
COMMANDS = (
    (["chat", "demo", "-q", "--temperature", "0", "-p", "What is 17 + 25?"], 3),
    (
        ["generate", "demo", "-q", "--temperature", "0", "--max-tokens", "40", "-p", "The command"],
        5,
    ),
    (["explain", "demo"], 12),
)
WIDTH, CHARACTER, LINE, MARGIN = 110, 7.6, 17, 14


def lines() -> list[tuple[str, str]]:
    """Return (class, text) of every line that is drawn."""
    drawn = []
    for words, limit in COMMANDS:
        command = [sys.executable, "-m", "hotshoe.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        printed = [row.rstrip() for row in done.stdout.strip().splitlines()]
        drawn.append(("typed", "$ hotshoe " + shlex.join(words)))
        drawn += [("printed", row[:WIDTH]) for row in printed[:limit]]
        if len(printed) > limit:
            drawn.append(("cut", f"… {len(printed) - limit} more lines"))
        drawn.append(("printed", ""))
    return drawn[:-1]


def draw(rows: list[tuple[str, str]]) -> str:
    """Return the picture."""
    width, height = WIDTH * CHARACTER + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN
    texts = ""
    for n, (kind, row) in enumerate(rows):
        y = MARGIN + LINE * (n + 0.75)
        texts += f'<text class="{kind}" x="{MARGIN}" y="{y:.0f}">{escape(row)}</text>\n'
    box = f"0 0 {width:.0f} {height}"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" role="img">
<title>hotshoe in a terminal</title>
<style>
text {{ font: 12.6px ui-monospace, Menlo, Consolas, monospace; white-space: pre; fill: #d7dce2; }}
.typed {{ fill: #8fd19e; font-weight: 600; }}
.cut {{ fill: #8a939d; }}
</style>
<rect width="100%" height="100%" rx="8" fill="#1b1f24"/>
{texts}</svg>
"""


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(draw(lines()), encoding="utf-8")
