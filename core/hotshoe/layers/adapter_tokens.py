"""Brings to the device which adapter each token of a step has, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hotshoe.slots import LoraTokens
from hotshoe.slots.reference.lora import Ints, arranged, ordered

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
        places, order, starts, *_ = self._recorded
        return LoraTokens(places[:size], order[:size], starts, range(self._max_adapters))


class HeadTokens(NamedTuple):
    """A step's tokens, a row for each head: those of a token lie side by side.

    Attributes:
        by_adapter: The place of a row is its token's.
        by_head: The place of a row is its token's place * number of heads + its head.
    """

    by_adapter: LoraTokens
    by_head: LoraTokens


class Heads:
    """What layers with so many heads share: the last step's tokens by head, and identities.

    Args:
        count: Heads.
        max_adapters: Places that there are.
        identity: [max_adapters * count, rank, rank], for half of a product of low rank.
    """

    def __init__(self, count: int, max_adapters: int, identity: Tensor) -> None:
        self.identity = identity
        self._count, self._max_adapters = count, max_adapters
        self._last: tuple[LoraTokens, HeadTokens] | None = None

    def of(self, tokens: LoraTokens, is_first: bool) -> HeadTokens:
        """Return a step's tokens by head.

        Its first layer has them arranged, though it did before: a device that records a step runs
        it once as it is, with the same tokens, and the recording has to arrange those of its steps.
        """
        if is_first or self._last is None or self._last[0] is not tokens:
            self._last = tokens, self._arranged(tokens)
        return self._last[1]

    def _arranged(self, tokens: LoraTokens) -> HeadTokens:
        count = self._count
        heads = torch.arange(count, dtype=torch.int32, device=tokens.places.device)
        order = (tokens.order[:, None] * count + heads).flatten()
        places = tokens.places.repeat_interleave(count)
        by_adapter = LoraTokens(places, order, tokens.starts * count, tokens.used)
        own = torch.where(places < 0, -1, places * count + heads.repeat(len(tokens.places)))
        used = [place * count + head for place in tokens.used for head in range(count)]
        by_head = ordered(own, self._max_adapters * count)._replace(used=used)
        return HeadTokens(by_adapter, by_head)
