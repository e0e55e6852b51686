"""Bookkeeping of the paged KV cache: logical blocks, prefix index, one coordinator over all groups.

Only numbers live here; the memory that the block ids stand for belongs to the runner. Called by
the scheduler. Standard library only.
"""

from hotshoe.kv.coordinator import KVCoordinator, TableChanges
from hotshoe.kv.sequence import CacheStats, PrefixHit, StoredTokens, Tables

__all__ = ["CacheStats", "KVCoordinator", "PrefixHit", "StoredTokens", "TableChanges", "Tables"]
