"""Blocks of equal size: who holds them, the order of reuse, and what can be found in them.

A free block keeps whatever was written to it until it is allocated again, so a block that the
prefix index knows can be brought back to life by `acquire`. Nothing here knows tokens:
KVCoordinator, the only caller, does.
"""

from collections.abc import Iterable

from hotshoe.kv.prefix import Bundle, PrefixIndex


class BlockPool:
    """Reference counts of `num_blocks` blocks, and the order in which the free ones are reused.

    The free list is doubly linked through two integer lists (no object per block), with the
    index `num_blocks` as its sentinel, so that taking a block out of its middle costs O(1).

    Args:
        num_blocks: Number of blocks; their ids are `0 .. num_blocks - 1`.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        end = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._prev = [end, *range(num_blocks)]

    def ref_count(self, block: int) -> int:
        """Return how many sequences hold the block; 0 means that it is free."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Take the `count` blocks that are next to be reused, each with one reference."""
        assert 0 <= count <= self.num_free
        following, end = self._next, self.num_blocks
        blocks, block = [], following[end]
        for _ in range(count):
            blocks.append(block)
            self._ref_counts[block] = 1
            block = following[block]
        following[end] = block
        self._prev[block] = end
        self.num_free -= count
        return blocks

    def acquire(self, block: int) -> None:
        """Add a reference to a block, which may be a free one."""
        if self._ref_counts[block] == 0:
            before, after = self._prev[block], self._next[block]
            self._next[before] = after
            self._prev[after] = before
            self.num_free -= 1
        self._ref_counts[block] += 1

    def release(self, blocks: Iterable[int], keep: bool) -> None:
        """Drop a reference to each of some blocks; the last one frees the block.

        Args:
            blocks: Blocks that are held.
            keep: Their content is worth keeping, so they are reused after all other free blocks
                instead of before them.
        """
        counts, following, preceding, end = (
            self._ref_counts,
            self._next,
            self._prev,
            self.num_blocks,
        )
        for block in blocks:
            count = counts[block] - 1
            assert count >= 0, f"block {block} was released more often than acquired"
            counts[block] = count
            if count:
                continue
            before = preceding[end] if keep else end
            after = following[before]
            preceding[block], following[block] = before, after
            following[before] = preceding[after] = block
            self.num_free += 1

    def free_order(self) -> list[int]:
        """Return the free blocks, next to be reused first. O(free blocks): tests and checks."""
        order: list[int] = []
        block = self._next[self.num_blocks]
        while block != self.num_blocks and len(order) <= self.num_blocks:
            order.append(block)
            block = self._next[block]
        return order

    def check(self) -> None:
        """Assert every invariant of the pool. O(blocks): tests."""
        order = self.free_order()
        assert len(order) == len(set(order)) == self.num_free, "free list repeats or miscounts"
        free = {block for block, count in enumerate(self._ref_counts) if count == 0}
        assert set(order) == free, "free list and reference counts disagree"
        assert all(count >= 0 for count in self._ref_counts), "negative reference count"
        for block in (*order, self.num_blocks):
            assert self._prev[self._next[block]] == block, "free list links disagree"


class Pool:
    """Blocks of equal size, and which of them hold content that can be found.

    Attributes:
        null: The id of the block that nobody owns.
        fresh: By its hash, content that later steps can find, but not the one being planned.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks)
        self.null = num_blocks
        self.fresh: dict[bytes, Bundle] = {}

    def allocate(self, count: int) -> Bundle:
        """Take blocks, whose old content nobody finds any more."""
        blocks = tuple(self.blocks.allocate(count))
        self.index.forget(blocks)
        if self.fresh:
            taken = set(blocks)
            for block_hash in [h for h, b in self.fresh.items() if not taken.isdisjoint(b)]:
                del self.fresh[block_hash]
        return blocks

    def acquire(self, bundle: Bundle) -> None:
        """Add a reference to each."""
        for block in bundle:
            self.blocks.acquire(block)

    def release(self, bundle: Bundle) -> None:
        """Drop a reference to each; content that can be found is reused last."""
        keep = self.index.holds(bundle[0]) or bundle in self.fresh.values()
        self.blocks.release(bundle, keep)

    def prefer(self, block_hash: bytes, bundle: Bundle) -> None:
        """Let blocks be found by their content, if the index leads to free ones that have the same.

        The free ones would be reused sooner, and with them the content were lost.
        """
        known = self.index.find(block_hash)
        if known is not None and not self.blocks.ref_count(known[0]):
            self.index.forget(known)
            self.acquire(known)
            self.blocks.release(known, keep=False)
            self.index.add(block_hash, bundle)

    def begin_step(self) -> None:
        """Let what earlier steps fill be found."""
        for block_hash, bundle in self.fresh.items():
            if self.index.add(block_hash, bundle) is not bundle:
                self.prefer(block_hash, bundle)
        self.fresh.clear()

    def forget(self, block_hash: bytes) -> None:
        """Let nobody find this content."""
        self.index.forget(self.index.find(block_hash) or ())
        self.fresh.pop(block_hash, None)

    def clear(self) -> None:
        """Let nobody find anything."""
        self.index.clear()
        self.fresh.clear()

    def check(self) -> None:
        """Assert every invariant. O(blocks): tests."""
        self.blocks.check()
        self.index.check()
        early = [b for bundle in self.fresh.values() for b in bundle if self.index.holds(b)]
        assert not early, "found before its time"
