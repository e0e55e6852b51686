"""The cache of keys and values that a layer holds, whatever attends to it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from hotshoe.layers.attention_cache import attention_cache, prepare_of
from hotshoe.layers.cache import Prepare, give_back, stored_as
from hotshoe.layers.context import BuildContext
from hotshoe.slots import AttentionSpec, KVLayout


class PagedCache:
    """See `hotshoe.layers.cache.CacheLayer`. Its layer registers itself in the build context.

    Args:
        ctx: The build context.
        spec: Heads, window, types.
        layout: Of the operation that reads the cache.
        planner: The operation's `prepare`, behind a key that is equal for equal operations.
        chunk: A query sees its own chunk of so many tokens, up to itself; None for all of them.
    """

    kv_scales: Tensor | None = None

    def __init__(
        self,
        ctx: BuildContext,
        spec: AttentionSpec,
        layout: KVLayout,
        planner: tuple[Hashable, Prepare],
        chunk: int | None = None,
    ) -> None:
        self.spec, self.layout = spec, layout
        self.cache: Tensor
        self.cache_spec = attention_cache(spec, layout, ctx.max_model_len, chunk)
        key, prepare = planner
        self.planner: tuple[Hashable, Prepare] = (key, prepare_of(self.cache_spec, prepare))
        self.view = 0
        self._device = ctx.device

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for the cache: [2, num_blocks, block_numel], with the layout's gaps; bytes
        if it is quantized.

        Left as it comes: attention reads no slot before it is written, so memory that no request
        has used yet need not become resident.
        """
        numel, dtype = stored_as(self.cache_spec)
        shape = (2, num_blocks, numel + self.layout.gap)
        self.cache = torch.empty(shape, dtype=dtype, device=self._device)[..., :numel]
        self.cache[:, -1] = 0  # the null block: what nobody reads must not spoil sums by NaN

    def share_cache(self, other: PagedCache) -> None:
        """Use another layer's cache, whose blocks have equal parts."""
        self.cache = other.cache

    def cache_memory(self) -> Sequence[Tensor]:
        """Return the one tensor."""
        return (self.cache,)

    def free_cache(self) -> None:
        """Give the cache's memory back, though an operation may remember the tensor."""
        give_back(self.cache)
        del self.cache
