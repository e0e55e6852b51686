"""Passes KV blocks on between engines, of whatever platforms: out of the prefix cache of one, into
that of another. Made by `EngineCore.kv_exchange`; used between steps."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.errors import KVTransferError
from hotshoe.executor import KVBlocks, KVWorker, Worker, check_transfer
from hotshoe.executor.kv import check_movable, check_windows
from hotshoe.kv import KVCoordinator, StoredTokens


@dataclass(frozen=True, slots=True)
class KVExchange:
    """One engine's side."""

    cache: KVCoordinator
    worker: KVWorker

    def give(
        self, token_ids: list[int], cache_salt: str | None = None, tenant: str | None = None
    ) -> KVBlocks:
        """Return the full blocks that hold the start of these tokens, as far as they are cached.

        A request's blocks are, while it runs and, until they are reused, after it.

        Raises:
            KVTransferError: Blocks of this model cannot be moved.
        """
        own = self.worker.describe_kv()
        check_movable(own)
        hit = self.cache.find_stored(StoredTokens(token_ids, cache_salt, tenant))
        held = token_ids[: hit.num_tokens]
        _, kept = self._filled(self.cache.block_ids(hit.tables))
        return KVBlocks(own, held, self.worker.read_kv(kept))

    def take(
        self, blocks: KVBlocks, cache_salt: str | None = None, tenant: str | None = None
    ) -> str:
        """Put blocks of another engine where a request that begins with their tokens finds them.

        They replace nothing that is in use; where there is little room, the first of them are
        taken.

        Returns:
            What converting them cost; "" if it was exact.

        Raises:
            KVTransferError: They cannot be converted; the message names the field and the remedy.
        """
        if not self.cache.caches_prefixes:
            raise KVTransferError(
                "KV blocks cannot be taken over: enable_prefix_caching is off here; switch it on",
                "enable_prefix_caching",
            )
        cost = check_transfer(blocks.descriptor, own := self.worker.describe_kv())
        check_windows(blocks, own)
        tokens = StoredTokens(blocks.token_ids, cache_salt, tenant)
        first, block_ids = self.cache.store(tokens)
        skipped, kept = self._filled(block_ids)
        try:
            self.worker.write_kv(kept, [first + count for count in skipped], blocks)
        except Exception:
            self.cache.forget(tokens)  # nobody may find what was not written
            raise
        return cost

    def _filled(self, block_ids: list[list[int]]) -> tuple[list[int], list[list[int]]]:
        """Return for each group how many leading null blocks there are, and the others."""
        nulls = self.cache.null_blocks
        skipped = [ids.count(null) for ids, null in zip(block_ids, nulls, strict=True)]
        return skipped, [ids[n:] for ids, n in zip(block_ids, skipped, strict=True)]


def open_exchange(worker: Worker | None, cache: KVCoordinator) -> KVExchange:
    """Return what passes on the blocks of a worker's cache.

    Args:
        worker: None while it sleeps.
        cache: Who holds which of its blocks.

    Raises:
        KVTransferError: What computes steps here has no blocks that could be moved.
    """
    if isinstance(worker, KVWorker):
        return KVExchange(cache, worker)
    raise KVTransferError(
        "KV blocks cannot be moved: what computes steps here has none, has divided them among "
        "processes, or sleeps; use a platform with memory, and one rank",
        "worker",
    )
