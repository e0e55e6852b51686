"""Attention of a layer that keeps no keys and values: it reads the cache of a layer before it."""

from __future__ import annotations

from torch import Tensor

from hotshoe.layers.attention import Attention
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.norm import RMSNorm
from hotshoe.layers.rotary import Rotary
from hotshoe.slots.reference.rotary import rotate


class SharedAttention:
    """Queries of this layer over the keys and values of another one of the same step.

    The layer asks for no cache, so its keys take no memory, and no block, prefix or window counts
    twice. Whatever the other layer's window, scale and heads are, they are this one's.

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
        """Map q [num_tokens, num_heads * head_dim] of this rank to the same shape."""
        spec = self.source.spec
        heads = q.reshape(-1, spec.head_dim)
        if self._norm is not None:
            normed = self._norm(heads)
            assert isinstance(normed, Tensor)
            heads = normed
        heads = heads.view(-1, spec.num_heads, spec.head_dim)
        if self._rotary is not None:
            table = self._rotary.table[batch.positions.long()]
            heads = rotate(heads, table, self._rotary.interleaved)
        return self.source.read(heads, batch)
