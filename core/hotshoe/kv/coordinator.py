"""Which blocks a sequence uses in every cache group: prefix lookup, allocation, registration,
release.

The coordinator keeps no record of sequences: what it knows of one is in that sequence's own fields
(CachedSequence), so a sequence that is dropped leaves nothing behind. Called by the scheduler.

Two orderings make early registration and early reuse right. Within a step, every layer's
attention writes the keys and values of the whole batch before it reads any; so a block filled in
this step may be hit by a later row of the *same* step, and full blocks are registered when they
are scheduled. States are read before they are written, so they are found once their step is
planned (`begin_step`). Across steps, the device executes steps in the order of their plans; so a
block freed while a step is in flight may be given away at once: its new owner writes in a later
step. A block that no query from this step on reads may even be given away in this very step.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hotshoe.kv.kinds import KINDS, CacheKind
from hotshoe.kv.pool import Pool
from hotshoe.kv.prefix import BlockHasher
from hotshoe.types.cache import CacheGroup, full_group

#: Tokens that no sequence has.
NO_LIMIT = 2**62
#: Changes to a sequence's block tables: group, column, block.
TableChanges: TypeAlias = list[tuple[int, int, int]]


class CachedSequence(Protocol):
    """What the coordinator needs of a request. It alone writes the last four fields.

    Attributes:
        token_ids: All known tokens.
        cache_salt, tenant, content: Only sequences with all three equal share blocks.
        block_ids: For each group the blocks held, in order: the first `block_size` tokens are in
            the first one. The null block stands where a block was released. Empty while the
            sequence holds nothing.
        num_released: For each group, how many leading columns hold the null block.
        block_hashes: Hashes of the leading full blocks, as far as they were needed yet.
        num_registered_blocks: Leading blocks already offered to the prefix index.
    """

    token_ids: list[int]
    cache_salt: str | None
    tenant: str | None
    content: str | None
    block_ids: list[list[int]]
    num_released: list[int]
    block_hashes: list[bytes]
    num_registered_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks from which a sequence can go on.

    Attributes:
        num_tokens: Leading tokens that need not be computed.
        blocks: For each group the blocks of these tokens, the null block where none is read.
    """

    num_tokens: int
    blocks: tuple[list[int], ...]


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
    block_ids: list[list[int]] = field(default_factory=list)
    num_released: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """One cache group.

    Attributes:
        kind: How its tables grow and shrink.
        tag: Tells its content from that of other groups of its pool under the same hash.
    """

    kind: CacheKind
    pool: Pool
    tag: bytes


class KVCoordinator:
    """Blocks of all sequences of one engine.

    Args:
        num_blocks: Blocks of each pool.
        block_size: Tokens per block, in every group.
        enable_prefix_caching: Let sequences share full blocks with equal content.
        hash_key: Key of the block hashes; None draws a random one.
        groups: Cache groups; none is one that keeps every token.
        step_tokens: Most tokens of a sequence that one step computes.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        enable_prefix_caching: bool,
        hash_key: bytes | None = None,
        groups: Sequence[CacheGroup] = (),
        step_tokens: int = 1,
    ) -> None:
        self.block_size = block_size
        self.pools = tuple(Pool(count) for count in num_blocks)
        self.groups = tuple(
            Group(
                KINDS[group.spec.kind](group.spec, step_tokens),
                self.pools[group.pool],
                bytes([i] if i else []),
            )
            for i, group in enumerate(groups or (full_group(block_size),))
        )
        self.caches_prefixes = enable_prefix_caching and all(g.kind.shares for g in self.groups)
        self._numbered = tuple(enumerate(self.groups))
        # Groups of which blocks are released while their sequence goes on.
        self._dropping = tuple(pair for pair in self._numbered if pair[1].kind.drops)
        # Those that say how long a sequence can grow; of equal block sizes, the first will do.
        growing = (i for i, group in self._numbered if group.kind.capacity(1) is not None)
        self._measured = next(growing, None)
        self._hasher = BlockHasher(block_size, hash_key)
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    def shortage(self, num_tokens: int) -> tuple[int, int] | None:
        """Return how many blocks one sequence needs to grow so long, and how many there are, of
        the first pool that has too few; None if it can."""
        for pool in self.pools:
            needed = self._most(pool, num_tokens)
            if needed > pool.blocks.num_blocks:
                return needed, pool.blocks.num_blocks
        return None

    def capacity(self, sequence: CachedSequence) -> int:
        """Return how many tokens the blocks suffice for that a sequence holds."""
        if self._measured is None:
            return NO_LIMIT
        return len(sequence.block_ids[self._measured]) * self.block_size

    def step_end(self, start: int, stop: int) -> int:
        """Return where a step shall end that computes a sequence's tokens from `start` on, at most
        to `stop`: at least one token later."""
        for group in self.groups:
            stop = group.kind.step_end(start, stop)
        return stop

    def begin_step(self) -> None:
        """Let whatever the steps fill that were planned before be found by the next one."""
        for pool in self.pools:
            if pool.fresh:
                pool.begin_step()

    def find_prefix(self, sequence: CachedSequence) -> PrefixHit:
        """Return the blocks that already hold the start of a sequence which holds none yet.

        At least one token is left to compute, since a step has to produce its logits. The blocks
        are not held until `admit`.
        """
        return self._find(sequence, len(sequence.token_ids) - 1)

    def find_stored(self, sequence: CachedSequence) -> PrefixHit:
        """Return the blocks that hold the start of a sequence, all of it if need be."""
        return self._find(sequence, len(sequence.token_ids))

    def no_prefix(self) -> PrefixHit:
        """Return the hit of a sequence that shall compute all of its tokens."""
        return PrefixHit(0, tuple([] for _ in self.groups))

    def store(self, sequence: CachedSequence) -> tuple[int, list[list[int]]]:
        """Make room in the prefix cache for the full blocks of a sequence, as many as are free.

        Where a group keeps only what is read, all of them are stored, or none. The blocks count as
        filled at once, so the caller fills them before the next step.

        Returns:
            How many leading blocks are there already, and for each group the blocks behind them,
            to be filled; the null block where nothing is kept.
        """
        full = len(sequence.token_ids) // self.block_size if self.caches_prefixes else 0
        hit = self.find_stored(sequence)
        first = hit.num_tokens // self.block_size
        self._take_hit(sequence, hit)
        reads = [group.kind.first_read(full * self.block_size) for group in self.groups]
        if self._dropping or len(self.groups) > 1:
            new = full - first if self._has_room(first, full, reads) else 0
        else:
            new = min(full - first, self.pools[0].blocks.num_free)
        for i, group in self._numbered:
            kept = max(first, reads[i] if new else first)
            sequence.block_ids[i] += [group.pool.null] * (kept - first)
            sequence.block_ids[i] += group.pool.allocate(first + new - kept)
        sequence.num_registered_blocks = first
        self.register(sequence, (first + new) * self.block_size)
        made = [blocks[first:] for blocks in sequence.block_ids]
        self.free(sequence)
        return first, made

    def fits(self, hit: PrefixHit, num_tokens: int, spare_blocks: int) -> bool:
        """Return whether `num_tokens` tokens could be held now, leaving spare blocks free.

        Args:
            hit: The result of `find_prefix`; those of its blocks that are free are used up too.
            spare_blocks: In each group.
        """
        for pool in self.pools:
            needed = 0
            for i, group in self._numbered:
                if group.pool is pool:
                    held = [block for block in hit.blocks[i] if block != pool.null]
                    revived = sum(pool.blocks.ref_count(block) == 0 for block in held)
                    needed += group.kind.num_blocks_for(num_tokens) - len(held) + revived
                    needed += 0 if group.kind.reserved else spare_blocks
            if needed > pool.blocks.num_free:
                return False
        return True

    def admit(self, sequence: CachedSequence, hit: PrefixHit, num_tokens: int) -> None:
        """Give a sequence that holds nothing its prefix and blocks for `num_tokens` tokens.

        The caller has asked `fits`.
        """
        self._take_hit(sequence, hit)
        sequence.num_registered_blocks = hit.num_tokens // self.block_size
        self._num_queried_tokens += len(sequence.token_ids)
        self._num_hit_tokens += hit.num_tokens
        for i, group in self._numbered:
            blocks = sequence.block_ids[i]
            empty, count = _missing(group.kind, len(blocks), num_tokens)
            blocks += [group.pool.null] * empty + group.pool.allocate(count)

    def grow(
        self, sequence: CachedSequence, start: int, num_tokens: int, changes: TableChanges
    ) -> bool:
        """Extend a sequence's blocks to hold `num_tokens` tokens; release what is read no more.

        Args:
            start: Tokens that are computed already; no query before them follows.
            changes: Takes every change to the block tables.

        Returns:
            False if too few blocks are free; then nothing was taken.
        """
        if self._dropping:
            self._release_unread(sequence, start, changes)
        tables = sequence.block_ids
        if len(tables) == 1:
            group = self.groups[0]
            empty, count = _missing(group.kind, len(tables[0]), num_tokens)
            if count > group.pool.blocks.num_free:
                return False
            if count:
                self._extend(0, tables[0], empty, count, changes)
            return True
        missing = [_missing(group.kind, len(tables[i]), num_tokens) for i, group in self._numbered]
        counts = [count for _, count in missing]
        for pool in self.pools:
            if self._sum(pool, counts) > pool.blocks.num_free:
                return False
        for i, (empty, count) in enumerate(missing):
            if count:
                self._extend(i, tables[i], empty, count, changes)
        return True

    def _extend(
        self, number: int, table: list[int], empty: int, count: int, changes: TableChanges
    ) -> None:
        pool = self.groups[number].pool
        for block in [pool.null] * empty + pool.allocate(count):
            changes.append((number, len(table), block))
            table.append(block)

    def register(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Offer to other sequences the full blocks among the first `num_tokens` tokens.

        Args:
            num_tokens: Tokens that are known and whose computation has been scheduled.
        """
        first, full = sequence.num_registered_blocks, num_tokens // self.block_size
        if not self.caches_prefixes or full <= first:
            return
        self._extend_hashes(sequence, full)
        for i, group in self._numbered:
            pool, blocks = group.pool, sequence.block_ids[i]
            for column in range(first, full):
                if blocks[column] == pool.null:
                    continue
                block_hash = sequence.block_hashes[column] + group.tag
                if group.kind.at_once:
                    pool.offer(block_hash, blocks[column])
                else:
                    pool.fresh[blocks[column]] = block_hash
        sequence.num_registered_blocks = full

    def free(self, sequence: CachedSequence) -> None:
        """Release a sequence's blocks, the last first, so that a prefix outlives its tails."""
        for group, blocks in zip(self.groups, sequence.block_ids, strict=False):
            for block in reversed(blocks):
                if block != group.pool.null:
                    group.pool.release(block)
        sequence.block_ids = []
        sequence.num_released = []
        sequence.num_registered_blocks = 0

    def forget(self, sequence: CachedSequence) -> None:
        """Never hit again any content that this sequence had, as it is suspect."""
        for group in self.groups:
            for block_hash in sequence.block_hashes:
                group.pool.forget(block_hash + group.tag)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, for instance because the weights have changed.

        No sequence may hold blocks: it would go on to register blocks computed from old ones.
        """
        for pool in self.pools:
            assert pool.blocks.num_free == pool.blocks.num_blocks, "sequences still hold blocks"
            pool.clear()

    def stats(self) -> CacheStats:
        """Return the present use and the hit counts."""
        blocks = [pool.blocks for pool in self.pools]
        return CacheStats(
            num_blocks=sum(pool.num_blocks for pool in blocks),
            num_used_blocks=sum(pool.num_blocks - pool.num_free for pool in blocks),
            num_indexed_blocks=sum(len(pool.index) for pool in self.pools),
            num_queried_tokens=self._num_queried_tokens,
            num_hit_tokens=self._num_hit_tokens,
        )

    def check(self) -> None:
        """Assert every invariant of pools and indexes. O(blocks): tests."""
        for pool in self.pools:
            pool.check()

    def check_held(self, sequences: Iterable[CachedSequence]) -> None:
        """Assert that these sequences, and nobody else, hold blocks. O(blocks): tests."""
        held: dict[int, Counter[int]] = {id(pool): Counter() for pool in self.pools}
        for sequence in sequences:
            for group, blocks in zip(self.groups, sequence.block_ids, strict=False):
                held[id(group.pool)].update(blocks)
        for pool in self.pools:
            for block in range(pool.blocks.num_blocks):
                assert pool.blocks.ref_count(block) == held[id(pool)][block]

    def _most(self, pool: Pool, num_tokens: int) -> int:
        """Return the most blocks of a pool that one sequence of so many tokens holds at once."""
        return sum(g.kind.num_blocks_for(num_tokens) for g in self.groups if g.pool is pool)

    def _sum(self, pool: Pool, counts: list[int]) -> int:
        """Add up those of each group's count, if positive, whose blocks come from a pool."""
        both = zip(counts, self.groups, strict=True)
        return sum(count for count, group in both if count > 0 and group.pool is pool)

    def _has_room(self, first: int, full: int, reads: list[int]) -> bool:
        """Tell whether columns `first` to `full` can be had, as far as they are read."""
        wanted = [full - max(first, read) for read in reads]
        return all(self._sum(pool, wanted) <= pool.blocks.num_free for pool in self.pools)

    def _take_hit(self, sequence: CachedSequence, hit: PrefixHit) -> None:
        assert not sequence.block_ids
        for group, blocks in zip(self.groups, hit.blocks, strict=True):
            pool = group.pool
            for block in blocks:
                if block != pool.null:
                    pool.blocks.acquire(block)
        sequence.block_ids = [list(blocks) for blocks in hit.blocks]
        sequence.num_released = [
            blocks.count(group.pool.null)
            for group, blocks in zip(self.groups, hit.blocks, strict=True)
        ]

    def _release_unread(self, sequence: CachedSequence, start: int, changes: TableChanges) -> None:
        """Put the null block where no query from position `start` on reads."""
        self.register(sequence, min(start, len(sequence.token_ids)))  # so that it can be found
        for i, group in self._dropping:
            blocks, pool = sequence.block_ids[i], group.pool
            first = group.kind.first_read(start)
            for column in range(sequence.num_released[i], first):
                if blocks[column] == pool.null:
                    continue
                pool.release(blocks[column])
                blocks[column] = pool.null
                changes.append((i, column, pool.null))
            sequence.num_released[i] = max(first, sequence.num_released[i])

    def _find(self, sequence: CachedSequence, num_tokens: int) -> PrefixHit:
        """Return the longest start of a sequence that all groups can give, up to `num_tokens`."""
        if not self.caches_prefixes:
            return self.no_prefix()
        length, agreed, number = num_tokens // self.block_size, 0, 0
        while agreed < len(self.groups):  # who shortens it, asks the others again
            longest = self._longest(sequence, self.groups[number], length)
            agreed = agreed + 1 if longest == length else 1
            length, number = longest, (number + 1) % len(self.groups)
        blocks = []
        for group in self.groups:
            first = group.kind.first_read(length * self.block_size)
            found = [self._cached(sequence, group, column) for column in range(first, length)]
            blocks.append([group.pool.null] * first + [b for b in found if b is not None])
        return PrefixHit(length * self.block_size, tuple(blocks))

    def _longest(self, sequence: CachedSequence, group: Group, limit: int) -> int:
        """Return the most columns, up to a limit, from which a group can let a sequence go on."""
        if group.kind.first_read(limit * self.block_size) == 0:
            for column in range(limit):
                if self._cached(sequence, group, column) is None:
                    return column
            return limit
        length = column = limit
        while column > group.kind.first_read(length * self.block_size):
            column -= 1
            if self._cached(sequence, group, column) is None:
                length = column
        return length

    def _cached(self, sequence: CachedSequence, group: Group, column: int) -> int | None:
        self._extend_hashes(sequence, column + 1)
        return group.pool.index.find(sequence.block_hashes[column] + group.tag)

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


def _missing(kind: CacheKind, held: int, num_tokens: int) -> tuple[int, int]:
    """Return how many columns a table lacks that get no block, and how many behind them that do.

    Args:
        held: Columns that there are.
    """
    columns = kind.num_columns(num_tokens)
    empty = max(kind.first_written(num_tokens) - held, 0)
    return empty, max(columns - held - empty, 0)
