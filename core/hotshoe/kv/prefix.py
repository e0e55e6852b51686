"""Names of block contents (a keyed hash chain) and the index from such a name to its block.

A block's hash covers every token from the start of the sequence to the block's end and the fields
that separate one cache tenant from another, so equal hashes mean interchangeable blocks. Hashes
are 256-bit and keyed: without the key, nobody can construct two prompts that collide, or tell
from a hash what was asked. KVCoordinator is the only caller.

Source: BLAKE2, RFC 7693, keyed mode.
"""

import hashlib
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: Blocks that hold one content together, one for each group of equal layers.
Bundle: TypeAlias = tuple[int, ...]
_HASH_BYTES = 32


class BlockHasher:
    """Computes block hashes under one key.

    Args:
        block_size: Tokens per block.
        key: 1 to 64 secret bytes; None draws a random key, so that hashes of two engines differ.
    """

    def __init__(self, block_size: int, key: bytes | None = None) -> None:
        key = secrets.token_bytes(_HASH_BYTES) if key is None else key
        assert 0 < len(key) <= hashlib.blake2b.MAX_KEY_SIZE
        # Copying a keyed state is cheaper than keying anew. `person` separates the two uses, so
        # that no choice of fields can equal a block's bytes.
        self._root = hashlib.blake2b(key=key, digest_size=_HASH_BYTES, person=b"root")
        self._block = hashlib.blake2b(key=key, digest_size=_HASH_BYTES, person=b"block")
        self._pack = struct.Struct(f"<{block_size}q").pack

    def root(self, fields: Mapping[str, str]) -> bytes:
        """Return the parent of a first block.

        Args:
            fields: What separates caches (such as the tenant), by tag. Tags and values are
                length-prefixed, so no two different mappings hash the same bytes; an absent
                field differs from an empty one.
        """
        state = self._root.copy()
        for tag, value in sorted(fields.items()):
            for text in (tag, value):
                data = text.encode("utf-8", "surrogatepass")
                state.update(len(data).to_bytes(8, "little"))
                state.update(data)
        return state.digest()

    def block(self, parent: bytes, token_ids: list[int]) -> bytes:
        """Return the hash of a full block that follows `parent` (a block's hash or a root)."""
        state = self._block.copy()
        state.update(parent)
        state.update(self._pack(*token_ids))
        return state.digest()


class PrefixIndex:
    """A one-to-one map between block hashes and the blocks that hold their content.

    Args:
        num_blocks: Block ids are below this.
    """

    def __init__(self, num_blocks: int) -> None:
        self._bundles: dict[bytes, Bundle] = {}
        self._hashes: list[bytes | None] = [None] * num_blocks

    def __len__(self) -> int:
        return len(self._bundles)

    def find(self, block_hash: bytes) -> Bundle | None:
        """Return the blocks that hold this content, if any do."""
        return self._bundles.get(block_hash)

    def holds(self, block: int) -> bool:
        """Return whether the index leads to this block."""
        return self._hashes[block] is not None

    def add(self, block_hash: bytes, bundle: Bundle) -> Bundle:
        """Lead `block_hash` to `bundle`, unless others have the same content already.

        Returns:
            What it leads to.
        """
        known = self._bundles.get(block_hash)
        if known is not None:
            return known
        hashes = self._hashes
        for block in bundle:
            assert hashes[block] is None, f"block {block} is indexed already"
            hashes[block] = block_hash
        self._bundles[block_hash] = bundle
        return bundle

    def forget(self, blocks: Sequence[int]) -> None:
        """Lead no hash to these blocks any more, nor to what is found with them."""
        hashes = self._hashes
        for block in blocks:
            block_hash = hashes[block]
            if block_hash is not None:
                for other in self._bundles.pop(block_hash):
                    hashes[other] = None

    def clear(self) -> None:
        """Forget every block."""
        self._bundles.clear()
        self._hashes = [None] * len(self._hashes)

    def check(self) -> None:
        """Assert that both directions of the map agree. O(blocks): tests."""
        indexed = {block: h for block, h in enumerate(self._hashes) if h is not None}
        found = {block: h for h, bundle in self._bundles.items() for block in bundle}
        assert indexed == found, "prefix index and block hashes disagree"
