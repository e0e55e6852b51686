"""`hotshoe bench report`: results of one benchmark as a page of HTML, without scripts or links."""

from __future__ import annotations

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hotshoe.cli.session import say
from hotshoe.errors import ConfigError
from hotshoe_bench.agent_report import COLUMNS, LATENCIES
from hotshoe_bench.compare import SETTINGS, differences, labels, numbers, read
from hotshoe_bench.pareto import HEIGHT, MARGIN, WIDTH, Point, draw, front, text, ticks
from hotshoe_bench.summary import PERCENTILES

_COLORS = ("#1565c0", "#c62828", "#2e7d32", "#6a1b9a", "#ef6c00", "#37474f")
#: Latencies of each request that a result keeps, and what the page calls them.
_CURVES = {"ttft_ms": "time to first token (ms)", "e2e_ms": "end to end (ms)"}
_STYLE = (
    "body{font:15px sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd}"
    "td+td,th+th{text-align:right}svg{max-width:100%}"
)
#: Points of a curve; a drawing shows no more.
MAX_POINTS = 400


class Report:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        text = "what --output-json wrote; the first is what the others are divided by"
        parser.add_argument("results", type=Path, nargs="+", metavar="RESULT", help=text)
        parser.add_argument(
            "--output-html", type=Path, required=True, metavar="FILE", help="page to write"
        )

    def run(self, args: Namespace) -> int:
        if len(args.results) > len(_COLORS):
            raise ConfigError(f"at most {len(_COLORS)} results fit one page")
        results = [read(path) for path in args.results]
        kinds = sorted({str(result["benchmark"]) for result in results})
        if len(kinds) > 1:
            raise ConfigError(f"the results are of bench {' and '.join(kinds)}; give those of one")
        names = labels(args.results)
        try:
            args.output_html.write_text(page(names, results), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {args.output_html}: {error.strerror}") from None
        say(f"written: {args.output_html}")
        return 0


def page(names: Sequence[str], results: Sequence[Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        names: Of the results.
        results: Of one benchmark, at least one.
    """
    title = f"hotshoe bench {results[0]['benchmark']}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1>",
        *_drawings(names, results),
        "<h2>Numbers</h2>",
        _table(["", *names, *(f"{name} : {names[0]}" for name in names[1:])], _rows(results)),
        "<h2>Settings</h2>",
        _table(["", names[0]], _settings(results[0])),
    ]
    for name, result in zip(names[1:], results[1:], strict=True):
        lines = "".join(f"<li>{escape(line)}</li>" for line in differences(results[0], result))
        parts += [f"<h3>{escape(name)} differs from {escape(names[0])}</h3>"]
        parts += [f"<ul>{lines}</ul>" if lines else "<p>in nothing.</p>"]
    return "\n".join([*parts, "</html>", ""])


def _rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each number: its name, the values, and their ratios to the first."""
    found = [numbers(result) for result in results]
    rows = []
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one.get(name) for one in found]
        first, others = values[0], values[1:]
        ratios = [f"{v / first:.3f}" if first and v is not None else "–" for v in others]
        rows.append([name, *map(_number, values), *ratios])
    return rows


def _settings(result: Mapping[str, Any]) -> list[list[str]]:
    rows = [["hotshoe", str(result.get("hotshoe", "unknown"))]]
    for part in SETTINGS:
        rows += [[f"{part}: {key}", str(value)] for key, value in result.get(part, {}).items()]
    return rows


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<table><tr>{head}</tr>\n{body}</table>"


def _drawings(names: Sequence[str], results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the front of each result that has loads, and curves of those that have requests."""
    parts = []
    for name, result in zip(names, results, strict=True):
        if found := points(numbers(result)):
            parts += [f"<h2>{escape(name)}</h2>", draw(found, name)]
            best = ", ".join(map(str, sorted(point.sessions for point in front(found))))
            parts.append(f"<p>On the Pareto front: {best} sessions at a time.</p>")
            parts.append(_loads(found, numbers(result)))
    for key, title in _CURVES.items():
        values = [_measured(result, key) for result in results]
        if any(values):
            parts.append(curves(names, values, title))
    return parts


def _loads(found: Sequence[Point], summary: Mapping[str, float]) -> str:
    """Return a table with a row for each load of `bench agent`."""
    spread = " / ".join(f"p{p}" for p in PERCENTILES)
    cells = {title: [name] for name, title in COLUMNS.items()} | {
        f"{title}, ms: {spread}": [f"{name}_p{p}" for p in PERCENTILES]
        for name, title in LATENCIES.items()
    }
    rows = [
        [
            str(point.sessions),
            *(
                " / ".join(_number(summary.get(f"{name}@{point.sessions}")) for name in names)
                for names in cells.values()
            ),
        ]
        for point in found
    ]
    return _table(["sessions", *cells], rows)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def points(summary: Mapping[str, float]) -> list[Point]:
    """Return the loads of `bench agent`, whose numbers are named as `ttft_ms_p50@4`."""
    loads = [name.partition("@")[2] for name in summary if name.startswith("user_tokens_per_s@")]
    return [
        Point(int(n), summary[f"user_tokens_per_s@{n}"], summary[f"output_tokens_per_s@{n}"])
        for n in loads
        if n.isdecimal() and f"output_tokens_per_s@{n}" in summary
    ]


def _measured(result: Mapping[str, Any], key: str) -> list[float]:
    """Return a latency of each answered request, ascending."""
    found = result.get("requests")
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    values = (row.get(key) for row in rows)
    return sorted(v for v in values if isinstance(v, int | float) and math.isfinite(v))


def curves(names: Sequence[str], values: Sequence[Sequence[float]], title: str) -> str:
    """Return an SVG image: which share of requests took at most so long.

    Args:
        names: Of the curves.
        values: Ascending latencies of each; a curve may have none.
        title: Of the horizontal axis.
    """
    times = ticks(max((row[-1] for row in values if row), default=0.0))
    right = times[-1]
    wide, high = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        text(WIDTH / 2, HEIGHT - 14, "middle", title),
        text(MARGIN, 48, "start", "share of requests"),
    ]
    for time in times:
        x = MARGIN + wide * time / right
        parts.append(f'<path d="M{x} {HEIGHT - MARGIN}V{MARGIN}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - MARGIN + 16, "middle", f"{time:,g}"))
    for share in ticks(1.0):
        y = HEIGHT - MARGIN - high * share
        parts.append(f'<path d="M{MARGIN} {y}H{MARGIN + wide}" stroke="#ddd"/>')
        parts.append(text(MARGIN - 6, y + 4, "end", f"{share:.0%}"))
    for place, (name, row) in enumerate(zip(names, values, strict=True)):
        count, color = len(row), _COLORS[place % len(_COLORS)]
        chosen = sorted({round(i * (count - 1) / MAX_POINTS) for i in range(MAX_POINTS + 1)})
        line = " ".join(
            f"{MARGIN + wide * row[i] / right:.1f},{HEIGHT - MARGIN - high * (i + 1) / count:.1f}"
            for i in chosen
            if count
        )
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = text(MARGIN + 12, MARGIN + 16 * (place + 1), "start", name)
        parts.append(label.replace("<text", f'<text fill="{color}"', 1))
    return "\n".join([*parts, "</svg>"])
