"""What the kinds of caches differ in, seen from block tables. One object for each group.

A new kind answers the three questions of `CacheKind`; the coordinator does everything else.
"""

from typing import Protocol

from hotshoe.types.cache import CacheSpec, held_blocks


class CacheKind(Protocol):
    """How the block tables of one group grow and shrink.

    A column of a sequence's table holds a block, or the null block once no later query reads it.
    """

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


class Paged:
    """Kinds "full", "latent" and "window": a block for every `block_tokens` tokens.

    Args:
        spec: Of the group's layers.
        step_tokens: Most tokens of a sequence that one step computes.
    """

    def __init__(self, spec: CacheSpec, step_tokens: int) -> None:
        self._spec = spec
        self._size = spec.block_tokens
        self._window = spec.window
        self._step_tokens = step_tokens

    def num_columns(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return -(-num_tokens // self._size)

    def first_read(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        if self._window is None:
            return 0
        return max(num_tokens - self._window + 1, 0) // self._size

    def num_blocks_for(self, num_tokens: int) -> int:
        """See `CacheKind`."""
        return held_blocks(self._spec, num_tokens, self._step_tokens)
