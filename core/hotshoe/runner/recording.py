"""How long a start records steps, and with which it begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import torch

from hotshoe.runner.graphs import Recordings
from hotshoe.slots import CommunicatorOp

_log = logging.getLogger(__name__)
#: Recording 33 sizes takes 4 s on a fast device; one that needs far longer serves with fewer.
RECORDING_S = 60.0


class Allowance:
    """Time for all recordings of a start, which begins now.

    Args:
        seconds: How much.
        group: The ranks that take part in each step; None for one.
        device: Where they agree.
    """

    def __init__(self, seconds: float, group: CommunicatorOp | None, device: torch.device) -> None:
        self._seconds, self._group, self._device = seconds, group, device
        self._begin = time.monotonic()

    def sizes(self, recordings: Recordings, of: str) -> Iterator[int]:
        """Yield the sizes to record, the largest first, until the time is over.

        Args:
            recordings: Takes each before the next is yielded.
            of: The things that a size counts, for the log.
        """
        for size in reversed(recordings.sizes):
            least = recordings.size_for(1)
            if least is not None and self._is_over():
                _log.warning(
                    "recording steps took %g s; those of up to %d %s are padded to %d",
                    *(self._seconds, size, of, least),
                )
                return
            yield size

    def _is_over(self) -> bool:
        over = time.monotonic() - self._begin >= self._seconds
        if self._group is None:
            return over
        # Ranks take part in each other's steps: all record a size, or none.
        own = torch.tensor([float(over)], device=self._device)
        return bool(self._group.all_reduce(own).item())
