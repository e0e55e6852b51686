"""Plain text tables for people; programs ask for JSON instead."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align columns, numbers to the right, under an underlined header; empty without rows."""
    if not rows:
        return ""
    text = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *text, strict=True)]
    right = [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * w for w in widths]), *map(line, text)])


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"
