"""How the rows or columns of a weight are divided among the ranks of tensor parallelism.

Numbers only. A layer registers the whole checkpoint tensor and keeps its rank's ranges of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotshoe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of a dimension that is divided on its own, such as the rows of k.

    Attributes:
        units: What must not be cut, such as heads.
        width: Rows or columns of each.
        shared: Where there are more ranks than units, several ranks may hold the same one.
    """

    units: int
    width: int = 1
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """One rank's part of a dimension.

    Attributes:
        ranges: Begin and end of what the rank holds, in the order in which it computes.
        padding: Rows of zeros after them, so that all ranks have equally many.
    """

    ranges: tuple[tuple[int, int], ...]
    padding: int = 0

    @property
    def size(self) -> int:
        """Rows or columns that the rank computes with, padding included."""
        return sum(end - begin for begin, end in self.ranges) + self.padding

    def within(self, begin: int, end: int) -> list[slice]:
        """Return what the rank holds of [begin, end), counted from begin."""
        cut = ((max(first, begin), min(last, end)) for first, last in self.ranges)
        return [slice(first - begin, last - begin) for first, last in cut if first < last]


def split_sections(what: str, sections: Sequence[Section], rank: int, size: int) -> Split:
    """Divide each section evenly.

    Args:
        what: The units' name, for messages.

    Raises:
        ConfigError: The units do not come out even; the message says which sizes do.
    """
    for section in sections:
        if not _divides(section, size):
            whole = range(1, max(s.units for s in sections) + 1)
            fitting = [n for n in whole if all(_divides(s, n) for s in sections)]
            raise ConfigError(
                f"tensor_parallel_size {size} does not divide the model's {section.units} {what}; "
                f"use {', '.join(map(str, fitting[:-1]))}{' or ' * (len(fitting) > 1)}{fitting[-1]}"
            )
    ranges, begin = [], 0
    for section in sections:
        first, last = section.units * rank // size, -(-section.units * (rank + 1) // size)
        ranges.append((begin + first * section.width, begin + last * section.width))
        begin += section.units * section.width
    return Split(tuple(ranges))


def split_padded(total: int, rank: int, size: int) -> Split:
    """Divide into equal parts, of which the last may be partly or wholly padding."""
    part = -(-total // size)
    begin, end = min(part * rank, total), min(part * (rank + 1), total)
    return Split(((begin, end),), part - (end - begin))


def _divides(section: Section, size: int) -> bool:
    return section.units % size == 0 or (section.shared and size % section.units == 0)
