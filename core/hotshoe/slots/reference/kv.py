"""Reads and writes of KV blocks in any declared layout; used by references and conversions.

Not fast: a platform's own kernels read their layout directly.
"""

from torch import Tensor

from hotshoe.slots.specs import KVLayout


class PagedKV:
    """A layer's cache seen through its layout.

    Args:
        cache: [2, num_blocks, block_numel], K first.
        layout: The physical layout.
        block_size: Tokens per block.
        num_kv_heads, head_dim: The cache's heads.
    """

    def __init__(
        self, cache: Tensor, layout: KVLayout, block_size: int, num_kv_heads: int, head_dim: int
    ) -> None:
        self._layout = layout
        self._shape = (block_size, num_kv_heads, head_dim)
        self._k = self._canonical(cache[0], layout.k_axes)
        self._v = self._canonical(cache[1], layout.v_axes)

    def _canonical(self, part: Tensor, axes: str) -> Tensor:
        """View [num_blocks, numel] as [num_blocks, T, t, h, D, d]; unsplit axes get an outer 1."""
        sizes = self._layout.block_shape(axes, *self._shape)
        view = part.view(part.shape[0], *sizes)
        for letter in "TD":
            if letter not in axes:
                axes += letter
                view = view.unsqueeze(-1)
        order = [1 + axes.index(letter) for letter in "TthDd"]
        return view.permute(0, *order)

    def write(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Store k and v [num_tokens, num_kv_heads, head_dim] at their slots."""
        block_size = self._shape[0]
        slots = slot_mapping.long()
        block, offset = slots // block_size, slots % block_size
        for part, value in ((self._k, k), (self._v, v)):
            inner = part.shape[2]
            outer_d, inner_d = part.shape[4:]
            split = value.to(part.dtype).view(*value.shape[:2], outer_d, inner_d)
            part[block, offset // inner, offset % inner] = split

    def gather(self, blocks: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return K and V [num_tokens, num_kv_heads, head_dim] of a request's blocks, in order."""
        _, heads, head_dim = self._shape
        k, v = (
            part[blocks.long()].reshape(-1, heads, head_dim)[:num_tokens]
            for part in (self._k, self._v)
        )
        return k, v
