"""Layers whose cache is one row for each token: latents, or the keys of an indexer."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers.cache import give_back
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.types.cache import CacheKind, CachePart, CacheSpec


class RowLayer:
    """What layers have in common whose cache is one row for each token.

    Attributes are those of `CacheLayer`.
    """

    cache_spec: CacheSpec
    cache: Tensor
    kv_scales: Tensor | None = None

    def __init__(self, kind: CacheKind, block_size: int, row: int, dtype: str, device: str) -> None:
        part = CachePart(kind, "td", (block_size, row), dtype)
        self.cache_spec = CacheSpec(kind, block_size, (part,))
        self._device = device
        self.view = 0

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for the cache: [num_blocks, block_size, row], left as it comes."""
        [part] = self.cache_spec.parts
        shape = (num_blocks, *part.shape)
        self.cache = torch.empty(shape, dtype=torch_dtype(part.dtype), device=self._device)
        self.cache[-1] = 0  # the null block: what nobody reads must not spoil sums by NaN

    def share_cache(self, other: RowLayer) -> None:
        """Use another layer's cache, whose blocks have equal parts."""
        self.cache = other.cache

    def free_cache(self) -> None:
        """Give the cache's memory back, though an operation may remember the tensor."""
        give_back(self.cache)
        del self.cache
