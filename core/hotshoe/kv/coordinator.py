"""Which blocks a sequence uses in every cache group: prefix lookup, allocation, registration,
release.

The coordinator keeps no record of sequences: what it knows of one is in that sequence's own fields
(CachedSequence), so a sequence that is dropped leaves nothing behind. Called by the scheduler.

Two orderings make early registration and early reuse right. Within a step, every layer's
attention writes the keys and values of the whole batch before it reads any; so a block filled in
this step may be hit by a later row of the *same* step, and full blocks are registered when they
are scheduled. What is read before it is written is found once its step is planned (`begin_step`).
Across steps, the device executes steps in the order of their plans; so a block freed while a step
is in flight may be given away at once: its new owner writes in a later step. A block that no query
from this step on reads may even be given away in this step.

Groups of equal specifications do everything alike. They form a *band*, and their blocks of one
column a *bundle*, which is taken, found, shared and released as one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

from hotshoe.kv.blocks import Pool
from hotshoe.kv.kinds import KINDS, CacheKind, Paged
from hotshoe.kv.prefix import BlockHasher, Bundle
from hotshoe.kv.sequence import CachedSequence, CacheStats, PrefixHit, Tables
from hotshoe.types.cache import CacheGroup, full_group
from hotshoe.types.steps import TableChange

TableChanges: TypeAlias = list[TableChange]
#: Tokens that no sequence has.
NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Band:
    """Groups of equal specifications.

    Attributes:
        kind: How their tables grow and shrink.
        groups: Their numbers.
        tag: Tells their content from that of other bands of the pool under the same hash.
        nulls: The null block, once for each group.
    """

    kind: CacheKind
    pool: Pool
    groups: tuple[int, ...]
    tag: bytes
    nulls: Bundle


def _bands(groups: Sequence[CacheGroup], pools: Sequence[Pool], step_tokens: int) -> Iterator[Band]:
    alike: dict[CacheGroup, list[int]] = {}
    for number, group in enumerate(groups if pools else ()):
        alike.setdefault(replace(group, layers=()), []).append(number)
    for i, (group, numbers) in enumerate(alike.items()):
        kind, pool = KINDS[group.spec.kind](group.spec, step_tokens), pools[group.pool]
        nulls = (pool.null,) * len(numbers)
        yield Band(kind, pool, tuple(numbers), bytes([i] if i else []), nulls)


class KVCoordinator:
    """Blocks of all sequences of one engine.

    Args:
        num_blocks: Blocks of each pool; none keeps nothing.
        block_size: Tokens per block, in every group.
        enable_prefix_caching: Let sequences share full blocks with equal content.
        groups: Cache groups; none is one that keeps every token.
        step_tokens: Most tokens of a sequence that one step computes.
    """

    def __init__(
        self,
        num_blocks: Sequence[int],
        block_size: int,
        enable_prefix_caching: bool,
        groups: Sequence[CacheGroup] = (),
        step_tokens: int = 1,
    ) -> None:
        self.block_size = block_size
        self.pools = tuple(Pool(count) for count in num_blocks)
        self.bands = tuple(_bands(groups or (full_group(block_size),), self.pools, step_tokens))
        kinds = [band.kind for band in self.bands]
        self.caches_prefixes = enable_prefix_caching and {k.shares for k in kinds} == {True}
        self._dropping = tuple((i, band) for i, band in enumerate(self.bands) if band.kind.drops)
        self._ending = tuple(kind for kind in kinds if kind.drops)  # others never end a step
        self._lags = any(group.spec.drafts for group in groups)  # states take accepted drafts late
        # The first band that says how long a sequence can grow; block sizes are equal.
        growing = (i for i, kind in enumerate(kinds) if kind.capacity(1) is not None)
        self._measured = next(growing, None)
        # Where all bands grow alike, the pool of all; with their groups' numbers in order, and the
        # place of each band's blocks among those of all.
        paged = all(isinstance(kind, Paged) for kind in kinds)
        self._even = self.pools[0] if paged and len(self.pools) == 1 else None
        self._groups = tuple(number for band in self.bands for number in band.groups)
        ends = [0, *accumulate(len(band.groups) for band in self.bands)]
        self._spans = tuple(slice(*pair) for pair in pairwise(ends))
        self._hasher = BlockHasher(block_size)
        #: Whether `begin_step` has something to do.
        self.has_news = False
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0

    def shortage(self, num_tokens: int) -> tuple[int, int] | None:
        """Return how many blocks one sequence needs to grow so long, and how many there are, of
        the first pool that has too few; None if it can."""
        for pool in self.pools:
            needed = sum(
                band.kind.num_blocks_for(num_tokens) * len(band.groups)
                for band in self.bands
                if band.pool is pool
            )
            if needed > pool.blocks.num_blocks:
                return needed, pool.blocks.num_blocks
        return None

    def capacity(self, sequence: CachedSequence) -> int:
        """Return how many tokens the blocks suffice for that a sequence holds."""
        if self._measured is None:
            return NO_LIMIT
        return len(sequence.tables[self._measured]) * self.block_size

    def block_ids(self, tables: Tables) -> list[list[int]]:
        """Return the blocks of every group, in order of columns."""
        blocks: list[list[int]] = [[] for _ in self._groups]
        for band, table in zip(self.bands, tables, strict=True):
            for place, number in enumerate(band.groups):
                blocks[number] = [bundle[place] for bundle in table]
        return blocks

    @property
    def null_blocks(self) -> list[int]:
        """For each group the id of the block that nobody owns."""
        return [null for (null,) in self.block_ids([[band.nulls] for band in self.bands])]

    def step_end(self, start: int, stop: int) -> int:
        """Return where a step shall end that computes a sequence's tokens from `start` on, at most
        to `stop`: at least one token later."""
        for kind in self._ending:
            stop = kind.step_end(start, stop)
        return stop

    def draft_end(self, start: int, stop: int) -> int:
        """Return where drafts behind `start` shall end, at most at `stop`.

        Wherever they are refused, the step that takes the others, and one token more, ends where a
        step may. What lags behind has no block further on than the next one.
        """
        end = self.step_end(start, stop + 1)
        if self._lags and self._ending:
            end = min(end, start - start % self.block_size + self.block_size)
        return end - 1

    def begin_step(self) -> None:
        """Let whatever the steps fill that were planned before be found by the next one."""
        for pool in self.pools:
            pool.begin_step()
        self.has_news = False

    def find_prefix(self, sequence: CachedSequence) -> PrefixHit:
        """Return the blocks that already hold the start of a sequence which holds none yet.

        At least one token is left to compute, since a step has to produce its logits. The blocks
        are not held until `admit`.
        """
        return self._find(sequence, len(sequence.token_ids) - 1)

    def find_stored(self, sequence: CachedSequence) -> PrefixHit:
        """Return the blocks that hold the start of a sequence, all of it if need be. Between steps,
        so that what the last one has filled is found."""
        self.begin_step()
        return self._find(sequence, len(sequence.token_ids))

    def no_prefix(self) -> PrefixHit:
        """Return the hit of a sequence that shall compute all of its tokens."""
        return PrefixHit(0, [[] for _ in self.bands])

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
        if len(self.bands) == 1 and not self._dropping:
            new = min(full - first, self.pools[0].blocks.num_free // len(self._groups))
            empty = [0]
        else:
            reads = (band.kind.first_read(full * self.block_size) for band in self.bands)
            empty = [max(read - first, 0) for read in reads]
            new = full - first if self._has_room([full - first - n for n in empty]) else 0
        for band, table, skipped in zip(self.bands, sequence.tables, empty, strict=True):
            _extend(band, table, min(skipped, new), max(new - skipped, 0), [])
        sequence.num_registered_blocks = first
        self.register(sequence, (first + new) * self.block_size)
        made = [blocks[first:] for blocks in self.block_ids(sequence.tables)]
        self.free(sequence)
        return first, made

    def fits(self, hit: PrefixHit, num_tokens: int, spare_blocks: int) -> bool:
        """Return whether `num_tokens` tokens could be held now, leaving spare blocks free.

        Args:
            hit: The result of `find_prefix`; those of its blocks that are free are used up too.
            spare_blocks: In each group, except where every sequence has its own reserve.
        """
        counts = []
        for band, table in zip(self.bands, hit.tables, strict=True):
            held = [bundle[0] for bundle in table if bundle != band.nulls]
            revived = sum(band.pool.blocks.ref_count(block) == 0 for block in held)
            missing = band.kind.num_blocks_for(num_tokens) - len(held)
            spare = 0 if band.kind.reserved else spare_blocks
            counts.append(missing + revived + spare)
        return self._has_room(counts)

    def admit(self, sequence: CachedSequence, hit: PrefixHit, num_tokens: int) -> None:
        """Give a sequence that holds nothing its prefix and blocks for `num_tokens` tokens.

        The caller has asked `fits`.
        """
        self._take_hit(sequence, hit)
        sequence.num_registered_blocks = hit.num_tokens // self.block_size
        self._num_queried_tokens += len(sequence.token_ids)
        self._num_hit_tokens += hit.num_tokens
        for band, table in zip(self.bands, sequence.tables, strict=True):
            _extend(band, table, *_missing(band.kind, len(table), num_tokens), [])

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
        read_from = start - sequence.num_accepted * self._lags
        for i, band in self._dropping:
            first = band.kind.first_read(read_from)
            if first > sequence.num_released[i]:
                if first > sequence.num_registered_blocks:  # so that they can be found
                    self.register(sequence, min(start, len(sequence.token_ids)))
                self._drop(sequence, i, first, changes)
        tables, pool = sequence.tables, self._even
        if pool is None:
            return self._grow_each(tables, num_tokens, changes)
        groups, column = self._groups, len(tables[0])
        missing = -(-num_tokens // self.block_size) - column
        if missing * len(groups) > pool.blocks.num_free:
            return False
        while missing > 0:
            blocks = pool.allocate(len(groups))
            if len(tables) == 1:
                tables[0].append(blocks)
            else:
                for table, span in zip(tables, self._spans, strict=True):
                    table.append(blocks[span])
            changes.append((groups, column, blocks))
            column += 1
            missing -= 1
        return True

    def _grow_each(self, tables: Tables, num_tokens: int, changes: TableChanges) -> bool:
        """Extend every band by itself; see `grow`."""
        both = list(zip(self.bands, tables, strict=True))
        wanted = [_missing(band.kind, len(table), num_tokens) for band, table in both]
        if not self._has_room([count for _, count in wanted]):
            return False
        for (band, table), (empty, count) in zip(both, wanted, strict=True):
            if count:
                _extend(band, table, empty, count, changes)
        return True

    def register(self, sequence: CachedSequence, num_tokens: int) -> None:
        """Offer to other sequences the full blocks among the first `num_tokens` tokens.

        Args:
            num_tokens: Tokens that are known and whose computation has been scheduled.
        """
        num_tokens -= sequence.num_accepted * self._lags
        first, full = sequence.num_registered_blocks, num_tokens // self.block_size
        if not self.caches_prefixes or full <= first:
            return
        self._extend_hashes(sequence, full)
        hashes = sequence.block_hashes
        for band, table in zip(self.bands, sequence.tables, strict=True):
            pool, tag, nulls = band.pool, band.tag, band.nulls
            for column in range(first, full):
                bundle = table[column]
                if bundle == nulls:
                    continue
                if not band.kind.at_once:
                    pool.fresh[hashes[column] + tag] = bundle
                    self.has_news = True
                elif pool.index.add(hashes[column] + tag, bundle) is not bundle:
                    pool.prefer(hashes[column] + tag, bundle)
        sequence.num_registered_blocks = full

    def free(self, sequence: CachedSequence) -> None:
        """Release a sequence's blocks, the last first, so that a prefix outlives its tails."""
        for band, table in zip(self.bands, sequence.tables, strict=False):
            for bundle in reversed(table):
                if bundle != band.nulls:
                    band.pool.release(bundle)
        sequence.tables, sequence.num_released = [], []
        sequence.num_registered_blocks = 0

    def forget(self, sequence: CachedSequence) -> None:
        """Never hit again any content that this sequence had, as it is suspect."""
        for band in self.bands:
            for block_hash in sequence.block_hashes:
                band.pool.forget(block_hash + band.tag)

    def reset_prefix_cache(self) -> None:
        """Forget all cached content, such as when the weights have changed.

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
            for band, table in zip(self.bands, sequence.tables, strict=False):
                held[id(band.pool)].update(chain.from_iterable(table))
        for pool in self.pools:
            for block in range(pool.blocks.num_blocks):
                assert pool.blocks.ref_count(block) == held[id(pool)][block]

    def _has_room(self, counts: Sequence[int]) -> bool:
        """Tell whether so many bundles of each band can be had; none if negative."""
        for pool in self.pools:
            both = zip(self.bands, counts, strict=True)
            needed = sum(max(n, 0) * len(band.groups) for band, n in both if band.pool is pool)
            if needed > pool.blocks.num_free:
                return False
        return True

    def _take_hit(self, sequence: CachedSequence, hit: PrefixHit) -> None:
        assert not sequence.tables
        for band, table in zip(self.bands, hit.tables, strict=True):
            for bundle in table:
                if bundle != band.nulls:
                    band.pool.acquire(bundle)
        sequence.tables = [list(table) for table in hit.tables]
        sequence.num_released = [
            table.count(band.nulls) for band, table in zip(self.bands, hit.tables, strict=True)
        ]

    def _drop(self, sequence: CachedSequence, i: int, first: int, changes: TableChanges) -> None:
        """Put the null block into a band's columns before `first`."""
        band, table, nulls = self.bands[i], sequence.tables[i], self.bands[i].nulls
        for column in range(sequence.num_released[i], first):
            bundle = table[column]
            if bundle != nulls:
                band.pool.release(bundle)
                table[column] = nulls
                changes.append((band.groups, column, nulls))
        sequence.num_released[i] = first

    def _find(self, sequence: CachedSequence, num_tokens: int) -> PrefixHit:
        """Return the longest start of a sequence that all groups can give, up to `num_tokens`."""
        if not self.caches_prefixes:
            return self.no_prefix()
        length, agreed, number = num_tokens // self.block_size, 0, 0
        while agreed < len(self.bands):  # who shortens it, asks the others again
            longest = self._longest(sequence, self.bands[number], length)
            agreed = agreed + 1 if longest == length else 1
            length, number = longest, (number + 1) % len(self.bands)
        tables: Tables = []
        for band in self.bands:
            first = band.kind.first_read(length * self.block_size)
            found = [self._cached(sequence, band, column) for column in range(first, length)]
            tables.append([band.nulls] * first + [b for b in found if b is not None])
        return PrefixHit(length * self.block_size, tables)

    def _longest(self, sequence: CachedSequence, band: Band, limit: int) -> int:
        """Return the most columns, up to a limit, from which a band can let a sequence go on."""
        if band.kind.first_read(limit * self.block_size) == 0:
            for column in range(limit):
                if self._cached(sequence, band, column) is None:
                    return column
            return limit
        length = column = limit
        while column > band.kind.first_read(length * self.block_size):
            column -= 1
            if self._cached(sequence, band, column) is None:
                length = column
        return length

    def _cached(self, sequence: CachedSequence, band: Band, column: int) -> Bundle | None:
        self._extend_hashes(sequence, column + 1)
        return band.pool.index.find(sequence.block_hashes[column] + band.tag)

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
            "adapter": sequence.adapter_key,
        }
        return self._hasher.root({k: v for k, v in fields.items() if v is not None})


def _missing(kind: CacheKind, held: int, num_tokens: int) -> tuple[int, int]:
    """Return how many columns a table lacks that get no block, and how many behind them that do.

    Args:
        held: Columns that there are.
    """
    empty = max(kind.first_written(num_tokens) - held, 0)
    return empty, max(kind.num_columns(num_tokens) - held - empty, 0)


def _extend(band: Band, table: list[Bundle], empty: int, count: int, changes: TableChanges) -> None:
    """Append columns to a band's tables: some that hold nothing, then some with new blocks."""
    width, column = len(band.groups), len(table)
    blocks = band.pool.allocate(count * width)
    made = [band.nulls] * empty
    made += [blocks[at : at + width] for at in range(0, len(blocks), width)]
    table += made
    changes += [(band.groups, column + i, bundle) for i, bundle in enumerate(made)]
