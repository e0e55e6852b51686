"""What the coordinator knows of one sequence, in the sequence's own fields, and what it answers."""

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from hotshoe.kv.prefix import Bundle

#: Of one sequence: for each band its bundles, in order of columns.
Tables: TypeAlias = list[list[Bundle]]


class CachedSequence(Protocol):
    """What the coordinator needs of a request. It alone writes the last four fields.

    Attributes:
        token_ids: All known tokens.
        cache_salt, tenant, content, adapter_key: Only sequences with all of them equal share
            blocks.
        tables: For each band the bundles held, in order: the first `block_size` tokens are in
            the first one. The null block stands where a block was released. Empty while the
            sequence holds nothing.
        num_released: For each band, how many leading columns hold the null block.
        block_hashes: Hashes of the leading full blocks, as far as they were needed yet.
        num_registered_blocks: Leading blocks already offered to the prefix index.
        num_accepted: How many computed tokens its states are behind, if it has any.
    """

    token_ids: list[int]
    cache_salt: str | None
    tenant: str | None
    content: str | None
    adapter_key: str | None
    num_accepted: int
    tables: Tables
    num_released: list[int]
    block_hashes: list[bytes]
    num_registered_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Cached blocks from which a sequence can go on.

    Attributes:
        num_tokens: Leading tokens that need not be computed.
        tables: For each band the bundles of these tokens, the null block where none is read.
    """

    num_tokens: int
    tables: Tables


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Use of the cache. Token counts are totals over all admissions since the start; of blocks that
    are found together, `num_indexed_blocks` counts one."""

    num_blocks: int
    num_used_blocks: int
    num_indexed_blocks: int
    num_queried_tokens: int
    num_hit_tokens: int


@dataclass(slots=True)
class StoredTokens:
    """A CachedSequence that is no request: tokens whose blocks are read or written from outside."""

    token_ids: list[int]
    cache_salt: str | None = None
    tenant: str | None = None
    content: str | None = None
    adapter_key: str | None = None
    num_accepted: int = 0
    tables: Tables = field(default_factory=list)
    num_released: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_registered_blocks: int = 0
