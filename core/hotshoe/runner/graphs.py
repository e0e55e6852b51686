"""Recorded steps, and the only place that decides how steps are padded for them.

A step that decodes, or verifies drafts, runs in the smallest recording that holds it. Padding rows
are ordinary rows of one token over a block that no request owns, and no operation knows of them.
A step that computes prompts runs in the smallest recording that holds its tokens, made in pieces:
attention is called between them, for the step's own requests, and never sees a padding token.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers.context import Attend, BetweenPieces
from hotshoe.slots import Between, CacheView, GraphOp, StepShape

#: Batch sizes double, then grow by 16 and by 32: padding stays small, and so does their number.
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 112, 128, *range(160, 513, 32))
#: Tokens of steps that compute prompts: those of every model, and those of narrow ones.
TOKEN_SIZES = (32, *range(64, 513, 64))
MORE_TOKENS = (*range(640, 1025, 128), *range(1280, 2305, 256), *range(2560, 4097, 512))
#: Numbers of a step's hidden states from which on a device takes longer than its host.
NUMBERS = 512 * 4096


def graph_sizes(limit: int, sizes: Sequence[int] = BATCH_SIZES) -> tuple[int, ...]:
    """Return the sizes worth recording, the last one being the limit, if that is no larger."""
    largest = min(limit, sizes[-1])
    return (*sizes[: bisect_left(sizes, largest)], largest)


def token_sizes(budget: int, channels: int, every: bool) -> tuple[int, ...]:
    """Return the tokens of steps worth recording in pieces.

    Args:
        budget: Of the largest step.
        channels: Of the model's hidden states.
        every: All are recorded at the start, so that there are few.
    """
    most = 0 if every else NUMBERS // channels
    sizes = (*TOKEN_SIZES, *MORE_TOKENS[: bisect_right(MORE_TOKENS, most)])
    return graph_sizes(budget, sizes)


class Recordings:
    """What replays a step, by padded size.

    Args:
        sizes: Ascending; empty to record nothing.

    Attributes:
        made: What replays each size that has been recorded.
        offered: Those sizes that steps are padded to.
        record: Records a step of one size, and returns what replays it; None: it cannot be had.
    """

    record: Callable[[int], Callable[[], Tensor] | None]

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.offered: Sequence[int] = ()
        self.made: dict[int, Callable[[], Tensor]] = {}

    def keep(self, size: int, replay: Callable[[], Tensor]) -> None:
        """Take the recording of one size, once, and offer it."""
        self.made[size] = replay
        self.offered = sorted(self.made)

    def size_for(self, number: int) -> int | None:
        """Return the size that a step is padded to; None when it must run as it is."""
        at = bisect_left(self.offered, number)
        return self.offered[at] if at < len(self.offered) else None

    def make(self, size: int) -> bool:
        """Record a step of this size, if none was recorded yet; return whether one is there."""
        if size not in self.made and (replay := self.record(size)) is not None:
            self.made[size] = replay
        return size in self.made

    def ready(self, number: int) -> int | None:
        """Return what `size_for` does, recorded by now; a size that cannot be had is given up."""
        while (size := self.size_for(number)) is not None and not self.make(size):
            self.offered = [other for other in self.offered if other != size]
        return size

    def replay(self, size: int) -> Tensor:
        """Repeat a recorded step over what its input tensors hold now."""
        return self.made[size]()


class Pieces:
    """Records all of a step but its attention.

    Attention finds q, and leaves its result, in buffers that all layers of a shape share: pieces
    read fixed addresses, and what a recording makes itself may be overwritten within it.

    Args:
        op: Chosen candidate of slot `graph`.
        max_tokens: Of the largest step; 0 when none is recorded so.
    """

    #: Of the step that attention between pieces is for; set before each replay.
    shape: StepShape
    views: Sequence[CacheView]

    def __init__(self, op: GraphOp, max_tokens: int) -> None:
        self._op = op
        self._max_tokens = max_tokens
        self._buffers: dict[tuple[torch.Size, torch.dtype], Tensor] = {}

    def record(self, step: Callable[[BetweenPieces], Tensor]) -> Callable[[], Tensor]:
        """Record a step, given what its `ForwardBatch.between` shall be."""

        def function(between: Between) -> Tensor:
            return step(partial(self._attention, between))

        if not self._buffers:
            function(lambda call: call())  # makes them outside any recording
        return self._op.record_pieces(function)

    def _attention(
        self, between: Between, q: Tensor, attend: Attend, width: int | None = None
    ) -> Tensor:
        buffer = self._buffer(q, q.shape[1:])
        buffer.copy_(q)
        out = buffer.flatten(1) if width is None else self._buffer(q, torch.Size((width,)))

        def call() -> None:
            count = len(self.views[0].slot_mapping)
            out[:count].copy_(attend(buffer[:count], self.views))

        between(call)
        return out

    def _buffer(self, like: Tensor, shape: torch.Size) -> Tensor:
        """Return the buffer of a shape, as many rows of it as a tensor has."""
        key = (shape, like.dtype)
        if key not in self._buffers:
            self._buffers[key] = like.new_zeros((self._max_tokens, *shape))
        return self._buffers[key][: len(like)]
