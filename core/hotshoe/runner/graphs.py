"""Recorded decode steps, and the only place that decides how batches are padded for them.

A batch of n requests runs in the smallest recording that holds it. Padding rows are ordinary rows
of one token over a block that no request owns, so no operation needs to know of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from torch import Tensor

from hotshoe.slots import GraphOp

#: Sizes double, then grow by 16 and by 32: padding stays small, and so does the number of them.
SMALL_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, *range(160, 513, 32))


def graph_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the batch sizes worth recording, the last one being the largest batch up to 512."""
    largest = min(max_num_seqs, SMALL_SIZES[-1])
    return (*SMALL_SIZES[: bisect_left(SMALL_SIZES, largest)], largest)


class DecodeGraphs:
    """Recordings by padded batch size.

    Args:
        op: Chosen candidate of slot `graph`.
        sizes: Ascending; empty to record nothing.
    """

    def __init__(self, op: GraphOp, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self._op = op
        self._replays: dict[int, Callable[[], Tensor]] = {}

    def record(self, size: int, step: Callable[[], Tensor]) -> None:
        """Record the step of one size."""
        self._replays[size] = self._op.record(step)

    def size_for(self, num_reqs: int) -> int | None:
        """Return the recorded size that a batch is padded to; None when it must run as it is."""
        at = bisect_left(self.sizes, num_reqs)
        if at == len(self.sizes) or self.sizes[at] not in self._replays:
            return None
        return self.sizes[at]

    def replay(self, size: int) -> Tensor:
        """Repeat a recorded step over what its input tensors hold now."""
        return self._replays[size]()
