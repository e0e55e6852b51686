"""Blocks of equal size with what can be found in them: a block pool and a prefix index as one."""

from hotshoe.kv.blocks import BlockPool
from hotshoe.kv.prefix import PrefixIndex


class Pool:
    """Blocks of equal size, and which of them hold content that can be found.

    Attributes:
        null: The id of the block that nobody owns.
        fresh: Content that can be found by later steps than the one being planned, by its block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = BlockPool(num_blocks)
        self.index = PrefixIndex(num_blocks)
        self.null = num_blocks
        self.fresh: dict[int, bytes] = {}

    def allocate(self, count: int) -> list[int]:
        """Take blocks, whose old content nobody finds any more."""
        blocks = self.blocks.allocate(count)
        for block in blocks:
            self.index.forget(block)
            if self.fresh:
                self.fresh.pop(block, None)
        return blocks

    def offer(self, block_hash: bytes, block: int) -> None:
        """Let a held block be found by its content, in place of a free one that has the same.

        The free one would be reused sooner, and with it the content were lost.
        """
        known = self.index.find(block_hash)
        if known is not None and not self.blocks.ref_count(known):
            self.index.forget(known)
            self.blocks.acquire(known)
            self.blocks.release(known, keep=False)
        self.index.add(block_hash, block)

    def release(self, block: int) -> None:
        """Drop a reference; content that can be found is reused last."""
        self.blocks.release(block, keep=self.index.holds(block) or block in self.fresh)

    def begin_step(self) -> None:
        """Let what earlier steps fill be found."""
        for block, block_hash in self.fresh.items():
            self.offer(block_hash, block)
        self.fresh.clear()

    def forget(self, block_hash: bytes) -> None:
        """Let nobody find this content."""
        block = self.index.find(block_hash)
        if block is not None:
            self.index.forget(block)
        for block in [b for b, content in self.fresh.items() if content == block_hash]:
            del self.fresh[block]

    def clear(self) -> None:
        """Let nobody find anything."""
        self.index.clear()
        self.fresh.clear()

    def check(self) -> None:
        """Assert every invariant. O(blocks): tests."""
        self.blocks.check()
        self.index.check()
        assert not any(self.index.holds(block) for block in self.fresh), "found before its time"
