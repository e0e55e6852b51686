"""Brings to the device which adapter each token of a step has, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from torch import Tensor

from hotshoe.slots import LoraTokens
from hotshoe.slots.reference.lora import Ints, arranged

#: Sends arrays, and returns them on the device, valid until its next call; those of the same shapes
#: always at the same addresses, if they are few enough.
Stage: TypeAlias = Callable[[Sequence[Ints]], Sequence[Tensor]]


class TokenPlaces:
    """The adapters of tokens on the device, for recorded steps at fixed addresses.

    Args:
        max_adapters: Places that there are.
        num_recorded: Most tokens of a recorded step.
        stage: Sends arrays.
    """

    def __init__(self, max_adapters: int, num_recorded: int, stage: Stage) -> None:
        self._max_adapters, self._num_recorded, self._stage = max_adapters, num_recorded, stage
        self._recorded: LoraTokens | None = None
        self.clear()

    def clear(self) -> None:
        """Let no token have an adapter where recordings read."""
        if self._num_recorded:
            self._recorded = self(np.full(self._num_recorded, -1, np.int32))

    def __call__(self, places: Ints) -> LoraTokens:
        """Send the place of each token, -1 for no adapter: of `num_recorded` and fewer to where
        recordings read them."""
        count = len(places)
        arrays, used = arranged(places, self._max_adapters, max(count, self._num_recorded))
        there, order, starts = self._stage(arrays)
        return LoraTokens(there[:count], order[:count], starts, used)

    def recorded(self, size: int) -> LoraTokens:
        """Return what a recording of `size` tokens reads: the step's that was sent last, and tokens
        without an adapter behind them."""
        assert self._recorded is not None
        places, order, starts, _ = self._recorded
        return LoraTokens(places[:size], order[:size], starts, range(self._max_adapters))
