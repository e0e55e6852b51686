"""Passes KV blocks on between engines, of whatever platforms: out of the prefix cache of one, into
that of another. Made by `EngineCore.kv_exchange`; used between steps."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.errors import KVTransferError
from hotshoe.executor import KVBlocks, KVDescriptor, KVWorker, check_transfer
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
            KVTransferError: Some layers keep no whole sequence.
        """
        own = self._whole()
        hit = self.cache.find_stored(StoredTokens(token_ids, cache_salt, tenant))
        held = token_ids[: hit.num_tokens]
        return KVBlocks(own, held, self.worker.read_kv(self.cache.block_ids(hit.tables)))

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
        cost = check_transfer(blocks.descriptor, self._whole())
        tokens = StoredTokens(blocks.token_ids, cache_salt, tenant)
        first, block_ids = self.cache.store(tokens)
        try:
            self.worker.write_kv(block_ids, first, blocks)
        except Exception:
            self.cache.forget(tokens)  # nobody may find what was not written
            raise
        return cost

    def _whole(self) -> KVDescriptor:
        """Describe the cache, if each of its blocks holds every layer's part."""
        own = self.worker.describe_kv()
        for number, layer in enumerate(own.layers):
            if layer.window is not None:
                raise KVTransferError(
                    f"KV blocks cannot be moved: layers[{number}] keeps only a window of "
                    f"{layer.window} tokens; set max_model_len to {layer.window} or less",
                    f"layers[{number}].window",
                )
        return own
