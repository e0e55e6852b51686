"""Which seed a sequence samples with. Derived where all requests meet: front ends that each counted
for themselves would give equal prompts equal random texts.
"""

from __future__ import annotations

import hashlib
import itertools


class Seeds:
    """Gives every sequence a seed of its own.

    Args:
        seed: The engine's. With the same one, and requests in the same order, texts repeat.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._numbers = itertools.count(1)

    def draw(self, seed: int | None, num_sequences: int) -> list[int]:
        """Return a seed for each sequence of a request, which may bring one itself."""
        number = next(self._numbers)
        if seed is None:
            seed = derived_seed(self._seed, number)
        return [derived_seed(seed, index) for index in range(num_sequences)]


def derived_seed(seed: int, index: int) -> int:
    """Return an independent 63-bit seed for each index."""
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
