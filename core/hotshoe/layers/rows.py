"""Layers whose cache is one row for each token or group of them: latents, or an indexer's keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hotshoe.layers.cache import give_back
from hotshoe.slots.reference.rows import held
from hotshoe.types.cache import CacheKind, CacheSpec
from hotshoe.types.rows import RowForm


class RowLayer:
    """What layers have in common whose cache is one row for each token, or for each group of them.

    Attributes are those of `CacheLayer`.

    Args:
        kind, block_size, row, device: Of the cache.
        window: Tokens that a query sees, itself included; None for all.
        group: Tokens that a row stands for. A block has room for one row at least.
    """

    cache_spec: CacheSpec
    cache: Tensor
    kv_scales: Tensor | None = None

    def __init__(
        self,
        kind: CacheKind,
        block_size: int,
        row: RowForm,
        device: str,
        *,
        window: int | None = None,
        group: int = 1,
    ) -> None:
        group = min(group, block_size)
        self._rows = block_size // group
        parts = row.parts(kind, self._rows)
        self.cache_spec = CacheSpec(kind, block_size, parts, window, group)
        self._row, self._device = row, device
        self.view = 0

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for the cache: [num_blocks, rows of a block, width], left as it comes."""
        shape = (num_blocks, self._rows, self._row.width)
        self.cache = torch.empty(shape, dtype=held(self._row), device=self._device)
        self.cache[-1] = 0  # the null block: what nobody reads must not spoil sums by NaN

    def share_cache(self, other: RowLayer) -> None:
        """Use another layer's cache, whose blocks have equal parts."""
        self.cache = other.cache

    def cache_memory(self) -> Sequence[Tensor]:
        """Return the one tensor."""
        return (self.cache,)

    def free_cache(self) -> None:
        """Give the cache's memory back, though an operation may remember the tensor."""
        give_back(self.cache)
        del self.cache
