"""Speed of one user against throughput of all, as a front and as a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, TICKS = 720, 440, 64, 5  # at most so many steps of an axis


class Point(NamedTuple):
    """One load: sessions at a time, tokens per second of a user, tokens per second of all."""

    sessions: int
    user: float
    total: float


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats, ordered by the speed of a user.

    A point beats another if it is at least as good in both numbers and better in one.
    """
    best = [
        point
        for point in points
        if not any(
            other.user >= point.user
            and other.total >= point.total
            and (other.user, other.total) != (point.user, point.total)
            for other in points
        )
    ]
    return sorted(best, key=lambda point: point.user)


def draw(points: Sequence[Point], name: str) -> str:
    """Return an SVG image: every point with its sessions, and a line along the front.

    Args:
        points: The loads.
        name: What was measured.
    """
    users = ticks(max((point.user for point in points), default=0.0))
    totals = ticks(max((point.total for point in points), default=0.0))
    right, top = users[-1], totals[-1]

    def place(user: float, total: float) -> tuple[float, float]:
        x = MARGIN + user / right * (WIDTH - 2 * MARGIN)
        return round(x, 1), round(HEIGHT - MARGIN - total / top * (HEIGHT - 2 * MARGIN), 1)

    line = " ".join(f"{x},{y}" for x, y in (place(p.user, p.total) for p in front(points)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 28, "middle", f"{name} (at each point: sessions at a time)"),
        text(WIDTH / 2, HEIGHT - 14, "middle", "output tokens per second of one user"),
        text(MARGIN, 48, "start", "output tokens per second of all users"),
    ]
    left, bottom = place(0, 0)
    for user in users:
        x, _ = place(user, 0)
        parts.append(f'<path d="M{x} {bottom}V{MARGIN}" stroke="#ddd"/>')
        parts.append(text(x, bottom + 16, "middle", f"{user:,g}"))
    for total in totals:
        _, y = place(0, total)
        parts.append(f'<path d="M{left} {y}H{WIDTH - MARGIN}" stroke="#ddd"/>')
        parts.append(text(left - 6, y + 4, "end", f"{total:,g}"))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1565c0" stroke-width="2"/>')
    for point in points:
        x, y = place(point.user, point.total)
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#1565c0"/>')
        parts.append(text(x + 7, y - 6, "start", str(point.sessions)))
    return "\n".join([*parts, "</svg>", ""])


def ticks(highest: float) -> list[float]:
    """Return round numbers from 0 in equal steps, the last of them at or above `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    power = math.floor(math.log10(highest / TICKS))
    digit, power = next(
        (digit, exponent)
        for exponent in (power, power + 1)
        for digit in (1, 2, 5)
        if float(f"{digit * TICKS}e{exponent}") >= highest
    )
    found = [0.0]
    while found[-1] < highest:
        found.append(float(f"{len(found) * digit}e{power}"))
    return found


def text(x: float, y: float, anchor: str, words: str) -> str:
    """Return words at a place of an SVG image."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
