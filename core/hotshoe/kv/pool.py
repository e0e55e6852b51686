"""Blocks of equal size with what can be found in them: a block pool and a prefix index as one."""

from hotshoe.kv.blocks import BlockPool
from hotshoe.kv.prefix import Bundle, PrefixIndex


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
