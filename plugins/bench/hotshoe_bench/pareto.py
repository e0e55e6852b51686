"""Speed of one user against throughput of all, as a front and as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN, TICKS = 720, 440, 64, 5


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


def draw(points: Sequence[Point], title: str) -> str:
    """Return an SVG image: every point with its sessions, and a line along the front."""
    right = max((point.user for point in points), default=0.0) or 1.0
    top = max((point.total for point in points), default=0.0) or 1.0

    def place(user: float, total: float) -> tuple[float, float]:
        x = MARGIN + user / right * (WIDTH - 2 * MARGIN)
        return round(x, 1), round(HEIGHT - MARGIN - total / top * (HEIGHT - 2 * MARGIN), 1)

    line = " ".join(f"{x},{y}" for x, y in (place(p.user, p.total) for p in front(points)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(WIDTH / 2, 28, "middle", title),
        text(WIDTH / 2, HEIGHT - 14, "middle", "output tokens per second of one user"),
        text(MARGIN, 48, "start", "output tokens per second of all users"),
    ]
    for number in range(TICKS + 1):
        user, total = right * number / TICKS, top * number / TICKS
        (x, y), (left, bottom) = place(user, total), place(0, 0)
        parts += [
            f'<path d="M{left} {y}H{WIDTH - MARGIN}M{x} {bottom}V{MARGIN}" stroke="#ddd"/>',
            text(x, bottom + 16, "middle", f"{user:.3g}"),
            text(left - 6, y + 4, "end", f"{total:.4g}"),
        ]
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1565c0" stroke-width="2"/>')
    for point in points:
        x, y = place(point.user, point.total)
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#1565c0"/>')
        parts.append(text(x + 7, y - 6, "start", str(point.sessions)))
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, anchor: str, words: str) -> str:
    """Return words at a place of an SVG image."""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'
