"""What the kinds of caches differ in, seen from block tables. One object for each group.

A new kind answers the questions of `CacheKind`; the coordinator does everything else.
"""

from collections.abc import Callable
from typing import Protocol

from hotshoe.types.cache import WINDOW_STEP, CacheSpec, held_blocks


class CacheKind(Protocol):
    """How the block tables of one group grow and shrink.

    A column of a sequence's table holds a block, or the null block where no later query reads.

    Attributes:
        drops: Blocks are released, or never taken, while their sequence goes on.
        shares: What a full block holds can be found by other sequences.
        at_once: It can be found by those of the step that fills it, since every layer writes
            before it reads.
        reserved: Pools have for every row the most blocks that a sequence holds, so none is
            spared for those that run.
    """

    drops: bool
    shares: bool
    at_once: bool
    reserved: bool

    def num_columns(self, num_tokens: int) -> int:
        """Return how many columns a sequence of so many tokens has."""
        ...

    def first_read(self, num_tokens: int) -> int:
        """Return the first column that is read once `num_tokens` tokens are computed.

        A sequence can go on from there if all columns from this one on are held; those before it
        may be released.
        """
        ...

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return the most blocks held at once by a sequence that grows to so many tokens."""
        ...

    def first_written(self, num_tokens: int) -> int:
        """Return the first column that gets a block, if not held already, from a step that
        computes up to `num_tokens` tokens. New columns before it get the null block."""
        ...

    def capacity(self, num_columns: int) -> int | None:
        """Return for how many tokens so many columns suffice; None for any number."""
        ...

    def step_end(self, start: int, stop: int) -> int:
        """Return where a step shall end that computes tokens from `start` on, at most to `stop`."""
        ...


class Paged:
    """Kinds "full", "latent", "index" and "window": a block for every `block_tokens` tokens.

    Args:
        spec: Of the group's layers.
        step_tokens: Most tokens of a sequence that one step computes.
    """

    shares = at_once = True
    reserved = False

    def __init__(self, spec: CacheSpec, step_tokens: int) -> None:
        self.drops = spec.window is not None
        self._spec, self._step_tokens = spec, step_tokens
        self._size, self._window = spec.block_tokens, spec.window

    def num_columns(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return -(-num_tokens // self._size)

    def first_read(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        if self._window is None:
            return 0
        if self._spec.chunked:
            return num_tokens // self._window * self._window // self._size
        return max(num_tokens - self._window + 1, 0) // self._size

    def num_blocks_for(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        if not self.drops:
            return self.num_columns(num_tokens)
        return held_blocks(self._spec, num_tokens, self._step_tokens)

    def first_written(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return 0

    def capacity(self, num_columns: int) -> int | None:
        """See `CacheKind`."""
        return num_columns * self._size

    def step_end(self, start: int, stop: int) -> int:
        """See `CacheKind`."""
        return min(stop, start + WINDOW_STEP) if self.drops else stop


class State:
    """Kind "state": what a recurrence has made of all tokens so far, in a block of its own.

    With checkpoints "none" there is one column, whose block every step overwrites. Otherwise the
    state behind a token lies in that token's column; a step reads the column of the last token
    before it. With "align" a step writes the column of its own last token alone, so it ends where a
    block ends, if it can: a column whose block is full then holds the state behind that block.

    Args:
        spec: Of the group's layers.
        step_tokens: Most tokens of a sequence that one step computes.
    """

    at_once = False
    reserved = True

    def __init__(self, spec: CacheSpec, step_tokens: int) -> None:
        self._spec = spec
        self._size = spec.block_tokens
        self._one = spec.checkpoints == "none"
        self._aligned = spec.checkpoints == "align"
        self.drops = self.shares = not self._one
        self._step_tokens = step_tokens

    def num_columns(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return min(num_tokens, 1) if self._one else -(-num_tokens // self._size)

    def first_read(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return 0 if self._one else max(num_tokens - 1, 0) // self._size

    def num_blocks_for(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return held_blocks(self._spec, num_tokens, self._step_tokens)

    def first_written(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return (num_tokens - 1) // self._size if self._aligned else 0

    def capacity(self, num_columns: int) -> int | None:
        """See `CacheKind`."""
        return None if self._one else num_columns * self._size

    def step_end(self, start: int, stop: int) -> int:
        """See `CacheKind`.

        A step that begins within a block ends with that block: its column is not full before. One
        that cannot reach the end of a block goes on within it.
        """
        if not self._aligned:
            return stop
        if start % self._size:
            return min(stop, start - start % self._size + self._size)
        end = stop - stop % self._size
        return end if end > start else stop


#: What makes a group's kind object, by `CacheSpec.kind`.
KINDS: dict[str, Callable[[CacheSpec, int], CacheKind]] = {
    **dict.fromkeys(("full", "latent", "index", "window"), Paged),
    "state": State,
}
