"""Which blocks a sequence uses: prefix lookup, allocation, registration, release.

The manager keeps no record of sequences: what it knows of one is in that sequence's own fields
(CachedSequence), so a sequence that is dropped leaves nothing behind. Called by the scheduler.

Two orderings make early registration and early reuse right. Within a step, every layer's
attention writes the keys and values of the whole batch before it reads any; so a block filled in
this step may be hit by a later row of the *same* step, and full blocks are registered when they
are scheduled. Across steps, the device executes steps in the order of their plans; so a block
freed while a step is in flight may be given away at once: its new owner writes in a later step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hotshoe.kv.blocks import BlockPool
from hotshoe.kv.prefix import BlockHasher, PrefixIndex


class CachedSequence(Protocol):
    """What the manager needs of a request. It alone writes the last three fields.

    Attributes:
        token_ids: All known tokens.
        cache_salt, tenant, content: Only sequences with all three equal share blocks.
        block_ids: Blocks held, in order; the first `block_size` tokens are in the first one.
        block_hashes: Hashes of the leading full blocks, as far as they were needed yet.
        num_registered_blocks: Leading blocks already offered to the prefix index.
    """

    token_ids: list[int]
    cache_salt: str | None
    tenant: str | None
    content: str | None
    block_ids: list[int]
    block_hashes: list[bytes]
    num_registered_blocks: int


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Use of the cache. Token counts are totals over all admissions since the start."""

    num_blocks: int
    num_used_blocks: int
    num_indexed_blocks: int
    num_queried_tokens: int
    num_hit_tokens: int


@dataclass(slots=True)
class StoredTokens:
    """A CachedSequence that is no request: tokens whose blocks are read or written from outside."""

    token_ids: list[int]
    cache_salt: str | None = None
    tenant: str | None = None
    content: str | None = None
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0


class KVCacheManager:
    """Blocks of all sequences of one engine.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block.
        enable_prefix_caching: Let sequences share full blocks with equal content.
        hash_key: Key of the block hashes; None draws a random one.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool,
        hash_key: bytes | None = None,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks)
        self.caches_prefixes = enable_prefix_caching
        self._hasher = BlockHasher(block_size, hash_key)
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, sequence: CachedSequence) -> list[int]:
        """Return the blocks that already hold the start of a sequence which holds none yet.

        At least one token is left to compute, since a step has to produce its logits. The blocks
        are not held until `admit`.
        """
        return self._find(sequence, len(sequence.token_ids) - 1)

    def find_stored(self, sequence: CachedSequence) -> list[int]:
        """Return the blocks that hold the start of a sequence, all of it if need be."""
        return self._find(sequence, len(sequence.token_ids))

    def store(self, sequence: CachedSequence) -> tuple[int, list[int]]:
        """Make room in the prefix cache for the full blocks of a sequence, as many as are free.

        The blocks count as filled at once, so the caller fills them before the next step.

        Returns:
            How many leading blocks are there already, and the blocks behind them, to be filled.
        """
        num_full = len(sequence.token_ids) // self.block_size if self.caches_prefixes else 0
        hits = self.find_stored(sequence)
        for block in hits:
            self.pool.acquire(block)
        sequence.block_ids.extend(hits)
        self._allocate(sequence, min(num_full - len(hits), self.pool.num_free))
        sequence.num_registered_blocks = len(hits)
        self.register(sequence, len(sequence.block_ids) * self.block_size)
        new = sequence.block_ids[len(hits) :]
        self.free(sequence)
        return len(hits), new

    def fits(self, hits: Sequence[int], num_tokens: int, spare_blocks: int) -> bool:
        """Return whether `num_tokens` tokens could be held now, leaving `spare_blocks` free.

        Args:
            hits: The result of `find_prefix`; those of them that are free are used up as well.
        """
        revived = sum(self.pool.ref_count(block) == 0 for block in hits)
        needed = self.num_blocks_for(num_tokens) - len(hits) + revived
        return needed + spare_blocks <= self.pool.num_free

    def admit(self, sequence: CachedSequence, hits: Sequence[int], num_tokens: int) -> None:
        """Give a sequence that holds nothing its prefix and blocks for `num_tokens` tokens.

        The caller has asked `fits`.
        """
        assert not sequence.block_ids
        for block in hits:
            self.pool.acquire(block)
        sequence.block_ids.extend(hits)
        sequence.num_registered_blocks = len(hits)
        self._num_queried_tokens += len(sequence.token_ids)
        self._num_hit_tokens += len(hits) * self.block_size
        self._allocate(sequence, self.num_blocks_for(num_tokens) - len(hits))

    def grow(self, sequence: CachedSequence, num_tokens: int) -> bool:
        """Extend a sequence's blocks to hold `num_tokens` tokens.

        Returns:
            False if too few blocks are free; then nothing has changed.
        """
        missing = self.num_blocks_for(num_tokens) - len(sequence.block_ids)
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            self._allocate(sequence, missing)
        return True

    def register(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Offer to other sequences the full blocks among the first `num_tokens` tokens.

        Args:
            num_tokens: Tokens that are known and whose computation has been scheduled.
        """
        num_full = num_tokens // self.block_size
        if not self.caches_prefixes or num_full <= sequence.num_registered_blocks:
            return
        self._extend_hashes(sequence, num_full)
        for i in range(sequence.num_registered_blocks, num_full):
            self.index.add(sequence.block_hashes[i], sequence.block_ids[i])
        sequence.num_registered_blocks = num_full

    def free(self, sequence: CachedSequence) -> None:
        """Release a sequence's blocks, the last first, so that a prefix outlives its tails."""
        for block in reversed(sequence.block_ids):
            self.pool.release(block, keep=self.index.holds(block))
        sequence.block_ids.clear()
        sequence.num_registered_blocks = 0

    def forget(self, sequence: CachedSequence) -> None:
        """Never hit again any content that this sequence had, as it is suspect."""
        for block_hash in sequence.block_hashes:
            block = self.index.find(block_hash)
            if block is not None:
                self.index.forget(block)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, for instance because the weights have changed.

        No sequence may hold blocks: it would go on to register blocks computed from old ones.
        """
        assert self.pool.num_free == self.pool.num_blocks, "sequences still hold blocks"
        self.index.clear()

    def stats(self) -> CacheStats:
        """Return the present use and the hit counts."""
        return CacheStats(
            num_blocks=self.pool.num_blocks,
            num_used_blocks=self.pool.num_blocks - self.pool.num_free,
            num_indexed_blocks=len(self.index),
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
        )

    def check(self) -> None:
        """Assert every invariant of pool and index. O(blocks): tests."""
        self.pool.check()
        self.index.check()

    def _allocate(self, sequence: CachedSequence, count: int) -> None:
        blocks = self.pool.allocate(count)
        for block in blocks:
            self.index.forget(block)
        sequence.block_ids.extend(blocks)

    def _find(self, sequence: CachedSequence, num_tokens: int) -> list[int]:
        """Return the blocks that hold the first `num_tokens` tokens, as far as they are here."""
        hits: list[int] = []
        for i in range(num_tokens // self.block_size if self.caches_prefixes else 0):
            self._extend_hashes(sequence, i + 1)
            block = self.index.find(sequence.block_hashes[i])
            if block is None:
                break
            hits.append(block)
        return hits

    def _extend_hashes(self, sequence: CachedSequence, num_blocks: int) -> None:
        hashes, size = sequence.block_hashes, self.block_size
        for i in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self._root(sequence)
            hashes.append(self._hasher.block(parent, sequence.token_ids[i * size : (i + 1) * size]))

    def _root(self, sequence: CachedSequence) -> bytes:
        fields = {
            "salt": sequence.cache_salt,
            "tenant": sequence.tenant,
            "content": sequence.content,
        }
        return self._hasher.root({k: v for k, v in fields.items() if v is not None})
