"""The choice of blocks of tokens that a query attends to: specification and call signature. Free of
torch.

Source: MiniMax M3's published configuration, and transformers' `MiniMaxM3VLIndexer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.slots.mixers import IndexerKeysOp
from hotshoe.types.rows import RowForm

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockIndexerSpec:
    """The choice of blocks that a query attends to, by small heads over a cache of their keys.

    Block b has the tokens from b * group on. A head scores a block by the largest q·key of its
    tokens that the query sees, those up to its own. The query's own block and the `local - 1`
    before it are chosen whatever they score, then blocks of the largest scores, `top_k` in all, or
    all of fewer. Each head chooses for itself. One key serves all heads.

    Attributes:
        num_heads: This rank's.
        head_dim: Channels of a head's q, and of the key.
        rope_dim: The leading ones, which are rotated.
        group: Tokens of a block, a multiple of `block_size`.
        top_k: Most blocks that are chosen.
        local: Blocks that are chosen whatever they score, 1 to `top_k`.
        interleaved: Rotated pairs are (2i, 2i+1) rather than (i, i + rope_dim/2).
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    group: int
    top_k: int
    local: int
    dtype: str
    kv_dtype: str
    block_size: int
    interleaved: bool = False

    @property
    def row(self) -> RowForm:
        """What the cache keeps of a token."""
        return RowForm(self.head_dim, 0, self.dtype, self.kv_dtype)


class BlockIndexerOp(IndexerKeysOp, Protocol):
    """The choice of blocks. It reads the cache of keys that it writes as an `IndexerKeysOp`."""

    def __call__(self, q: Tensor, cache: Tensor, prepared: Any) -> Tensor:
        """Choose; float32 inside.

        Args:
            q: What `write` returned, [num_tokens, num_heads, head_dim].
            cache: As for `write`, this step's keys written.
            prepared: What `prepare` returned for this step.

        Returns:
            [num_tokens, num_heads, top_k] int32: numbers of blocks of the token's sequence, each
            once, in any order, then -1 where there are fewer. Of equal scores, any may be chosen.
        """
        ...
