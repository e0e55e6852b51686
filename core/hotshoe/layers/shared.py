"""Attention of a layer that keeps no keys and values: it reads the cache of a layer before it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers.attention import Attention
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.norm import RMSNorm
from hotshoe.layers.rotary import Rotary
from hotshoe.slots.reference.rotary import rotate


class SharedAttention:
    """Queries of this layer over the keys and values of another one of the same step.

    The layer asks for no cache, so its keys take no memory, and no block, prefix or window counts
    twice. The other layer's window, scale and kv heads are this one's. Queries may be of another
    number: they go through the other layer's operation in as many calls as they need, and zeros
    fill the last one.

    Args:
        ctx: The build context.
        source: Whose cache is read; it runs before this layer in every step.
        rotary: The rotation of queries; None for none.
        q_norm: Checkpoint name of the norm of each head's query; None for none.
        eps, weight_offset: Of that norm.
    """

    def __init__(
        self,
        ctx: BuildContext,
        source: Attention,
        rotary: Rotary | None,
        q_norm: str | None = None,
        eps: float = 1e-6,
        weight_offset: float = 0.0,
    ) -> None:
        self.source, self._rotary = source, rotary
        size = source.spec.head_dim
        self._norm = None if q_norm is None else RMSNorm(ctx, q_norm, size, eps, weight_offset)

    def __call__(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Map q [num_tokens, heads * head_dim] of this rank to [num_tokens, heads * value_dim]."""
        spec = self.source.spec
        heads = q.reshape(-1, spec.head_dim)
        if self._norm is not None:
            normed = self._norm(heads)
            assert isinstance(normed, Tensor)
            heads = normed
        heads = heads.view(len(q), -1, spec.head_dim)
        if self._rotary is not None:
            table = self._rotary.table[batch.positions.long()]
            heads = rotate(heads, table, self._rotary.interleaved)
        if heads.shape[1] == spec.num_heads:
            return self.source.read(heads, batch)
        return self._read(heads.view(len(q), spec.num_kv_heads, -1, spec.head_dim), batch)

    def _read(self, q: Tensor, batch: ForwardBatch) -> Tensor:
        """Map q [num_tokens, num_kv_heads, queries of each, head_dim]."""
        spec = self.source.spec
        room = spec.num_heads // spec.num_kv_heads
        found = []
        for part in torch.split(q, room, dim=2):
            own = part.shape[2]
            full = functional.pad(part, (0, 0, 0, room - own)).flatten(1, 2)
            out = self.source.read(full, batch).view(len(q), spec.num_kv_heads, room, -1)
            found.append(out[:, :, :own])
        return torch.cat(found, 2).flatten(1)
