"""What the front end counts: numbers in a fixed place each, in memory that processes may share.

Since label sets are closed, the place of every number is known beforehand. A process writes into
its own part and needs no lock; whoever is asked for metrics adds the parts up.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Sequence

from hotshoe_observability.table import FRONT_END, OTHER, Metric

_DOUBLE = 8
#: Of each metric, as they are looked at with every token.
_BOUNDS = {metric.name: metric.bounds for metric in FRONT_END}


def _layout(metrics: Sequence[Metric]) -> tuple[dict[tuple[str, str], int], int]:
    """Return the place of the first number of each series by name and label value, and the end.

    A histogram has one number for each bound, infinity included, and one for the sum.
    """
    places, end = {}, 0
    for metric in metrics:
        size = len(metric.bounds) + 2 if metric.kind == "histogram" else 1
        for value in metric.values:
            places[metric.name, value] = end
            end += size
    return places, end


class Counts:
    """Counters and histograms of `table.FRONT_END`.

    Args:
        memory: Shared by all processes, of `size(num_processes)` bytes, zeroed; None counts alone.
        process: Which part this process writes.
        num_processes: How many parts there are.
    """

    PLACES, LENGTH = _layout(FRONT_END)

    def __init__(
        self, memory: mmap.mmap | bytearray | None = None, process: int = 0, num_processes: int = 1
    ) -> None:
        self.num_processes = num_processes
        whole = memoryview(bytearray(self.size(num_processes)) if memory is None else memory)
        numbers = whole[: self.size(num_processes)].cast("d")
        self._parts = [
            numbers[i * self.LENGTH : (i + 1) * self.LENGTH] for i in range(num_processes)
        ]
        self._own = self._parts[process]

    @classmethod
    def size(cls, num_processes: int) -> int:
        """Return the bytes that so many processes need."""
        return num_processes * cls.LENGTH * _DOUBLE

    @classmethod
    def shared(cls, file: int, process: int, num_processes: int) -> Counts:
        """Count together with other processes, in a file that all of them have open.

        A process that takes the place of another one goes on with its numbers.
        """
        size = cls.size(num_processes)
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)  # whoever comes first; what is new is zero
        return cls(mmap.mmap(file, size), process, num_processes)

    def add(self, metric: Metric, value: str = "") -> None:
        """Count one more under a label value; one that the table does not list counts as other."""
        place = self.PLACES.get((metric.name, value))
        self._own[self.PLACES[metric.name, OTHER] if place is None else place] += 1

    def observe(self, metric: Metric, number: float, times: int = 1, value: str = "") -> None:
        """Put a number into a histogram, once or several times."""
        place, bounds = self.PLACES[metric.name, value], _BOUNDS[metric.name]
        self._own[place + bisect_left(bounds, number)] += times
        self._own[place + len(bounds) + 1] += number * times

    def total(self, metric: Metric, value: str = "") -> float:
        """Return a counter over all processes."""
        place = self.PLACES[metric.name, value]
        return sum(part[place] for part in self._parts)

    def histogram(self, metric: Metric, value: str = "") -> list[float]:
        """Return the numbers by bound, infinity included and not cumulative, then the sum."""
        place = self.PLACES[metric.name, value]
        places = range(place, place + len(metric.bounds) + 2)
        return [sum(part[i] for part in self._parts) for i in places]
