"""Bookkeeping of the paged KV cache: logical blocks, prefix index, one manager over both.

Only numbers live here; the memory that the block ids stand for belongs to the runner. Called by
the scheduler. Standard library only.
"""

from hotshoe.kv.manager import CacheStats, KVCacheManager, StoredTokens

__all__ = ["CacheStats", "KVCacheManager", "StoredTokens"]
