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
from collections.abc import Mapping

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
        self._blocks: dict[bytes, int] = {}
        self._hashes: list[bytes | None] = [None] * num_blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, block_hash: bytes) -> int | None:
        """Return the block that holds this content, if any does."""
        return self._blocks.get(block_hash)

    def holds(self, block: int) -> bool:
        """Return whether the index leads to this block."""
        return self._hashes[block] is not None

    def add(self, block_hash: bytes, block: int) -> None:
        """Lead `block_hash` to `block`, unless another block has the same content already."""
        if block_hash in self._blocks:
            return
        assert self._hashes[block] is None, f"block {block} is indexed already"
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash

    def forget(self, block: int) -> None:
        """Lead no hash to `block` any more; harmless if none did."""
        block_hash = self._hashes[block]
        if block_hash is not None:
            del self._blocks[block_hash]
            self._hashes[block] = None

    def clear(self) -> None:
        """Forget every block."""
        self._blocks.clear()
        self._hashes = [None] * len(self._hashes)

    def check(self) -> None:
        """Assert that both directions of the map agree. O(blocks): tests."""
        indexed = {h: block for block, h in enumerate(self._hashes) if h is not None}
        assert indexed == self._blocks, "prefix index and block hashes disagree"
