"""Reads and writes of KV blocks in any declared layout; used by references and conversions.

Not fast: a platform's own kernels read their layout directly.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.specs import AttentionSpec, KVLayout, RotaryAndCacheSpec

#: Where scales lie: a number for each token of each head.
SCALES_LAYOUT = KVLayout("scales", "htd", "htd")
#: The largest magnitude of each 8-bit type.
LIMITS = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


class PagedKV:
    """A layer's cache seen through its layout.

    Args:
        cache: [2, num_blocks, block_numel], K first.
        layout: The physical layout.
        block_size: Tokens per block.
        num_kv_heads, head_dim: The cache's heads.
        v_head_dim: Channels of values; None for those of keys.
    """

    def __init__(
        self,
        cache: Tensor,
        layout: KVLayout,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        v_head_dim: int | None = None,
    ) -> None:
        self._layout = layout
        self._shape = (block_size, num_kv_heads)
        self._value_dim = head_dim if v_head_dim is None else v_head_dim
        self._k = self._canonical(cache[0], layout.k_axes, head_dim)
        room = layout.value_room(head_dim, v_head_dim)
        self._v = self._canonical(cache[1], layout.v_axes, room)

    def _canonical(self, part: Tensor, axes: str, dim: int) -> Tensor:
        """View [num_blocks, numel] as [num_blocks, T, t, h, D, d]; unsplit axes get an outer 1."""
        sizes = self._layout.block_shape(axes, *self._shape, dim)
        view = part[:, : math.prod(sizes)].view(part.shape[0], *sizes)
        for letter in "TD":
            if letter not in axes:
                axes += letter
                view = view.unsqueeze(-1)
        order = [1 + axes.index(letter) for letter in "TthDd"]
        return view.permute(0, *order)

    def write(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Store k and v [num_tokens, num_kv_heads, head_dim] at their slots, v of its own width."""
        block_size = self._shape[0]
        slots = slot_mapping.long()
        block, offset = slots // block_size, slots % block_size
        for part, value in ((self._k, k), (self._v, v)):
            inner = part.shape[2]
            outer_d, inner_d = part.shape[4:]
            value = F.pad(value, (0, outer_d * inner_d - value.shape[2]))
            split = value.to(part.dtype).view(*value.shape[:2], outer_d, inner_d)
            part[block, offset // inner, offset % inner] = split

    def gather(self, blocks: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return K and V [num_tokens, num_kv_heads, head_dim] of a request's blocks, in order."""
        k, v = (
            part[blocks.long()].flatten(4).reshape(-1, self._shape[1], part[0, 0, 0, 0].numel())
            for part in (self._k, self._v)
        )
        return k[:num_tokens], v[:num_tokens, :, : self._value_dim]


class QuantizedKV:
    """A layer's cache of an 8-bit type. It stores float32 values and returns them.

    Args:
        cache: Bytes, as `hotshoe.slots.AttentionOp` says.
        dtype: Of the numbers.
        layout: Of the numbers.
        sizes: Tokens per block, kv heads, and channels of a head.
        scales: "none", "tensor" or "token".
        given: [2] float32, the scales of keys and of values with "tensor".
    """

    def __init__(
        self,
        cache: Tensor,
        dtype: str,
        layout: KVLayout,
        sizes: tuple[int, int, int],
        scales: str,
        given: Tensor | None,
    ) -> None:
        self._dtype = dtype
        self._parts = parts_of(cache, torch_dtype(dtype), layout, sizes, scales == "token")
        self._given = torch.ones(2, device=cache.device)
        if scales == "tensor":
            assert given is not None, "the layer sets kv_scales before the first call"
            self._given = given

    def write(self, k: Tensor, v: Tensor, slot_mapping: Tensor) -> None:
        """Store k and v [num_tokens, num_kv_heads, head_dim] at their slots.

        A token's head that holds NaN has NaN for its scale.
        """
        values = k.float(), v.float()
        scales = [given.view(1, 1, 1) for given in self._given]
        if len(self._parts) > 1:
            scales = [scale_of(x, self._dtype) for x in values]
            self._parts[1].write(scales[0], scales[1], slot_mapping)
        k, v = (rounded(x / scale, self._dtype) for x, scale in zip(values, scales, strict=True))
        self._parts[0].write(k, v, slot_mapping)

    def gather(self, blocks: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
        """Return K and V [num_tokens, num_kv_heads, head_dim] float32 of a request's blocks."""
        k, v = self._parts[0].gather(blocks, num_tokens)
        k_scale, v_scale = self._given
        if len(self._parts) > 1:
            k_scale, v_scale = self._parts[1].gather(blocks, num_tokens)
        return k.float() * k_scale, v.float() * v_scale


def scale_of(x: Tensor, dtype: str) -> Tensor:
    """Return what maps the largest magnitude of each x [..., n] to an 8-bit type's [..., 1]; 1 for
    zeros, NaN where there is NaN."""
    largest = x.abs().amax(-1, keepdim=True)
    return torch.where(largest == 0, 1.0, largest / torch.full_like(largest, LIMITS[dtype]))


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Return x in an 8-bit type, to the nearest, ties to even; values too large at the limit."""
    limit = LIMITS[dtype]
    x = x.clamp(-limit, limit)
    return (x.nan_to_num().round() if dtype == "int8" else x).to(torch_dtype(dtype))


def parts_of(
    cache: Tensor,
    dtype: torch.dtype,
    layout: KVLayout,
    sizes: tuple[int, int, int],
    scaled: bool,
    v_head_dim: int | None = None,
) -> list[PagedKV]:
    """Return views of a cache as it is stored: its elements and, if it has them, its scales.

    Args:
        cache: [2, num_blocks, block_numel], or bytes of an 8-bit type.
        dtype: Of the elements.
        sizes: Tokens per block, kv heads, and channels of a head.
        v_head_dim: Those of its values; None for as many.
    """
    block_size, heads, head_dim = sizes
    numel = block_size * heads * head_dim
    found = [PagedKV(cache[..., :numel].view(dtype), layout, *sizes, v_head_dim)]
    if scaled:
        scales = cache[..., numel : numel + 4 * block_size * heads].view(torch.float32)
        found.append(PagedKV(scales, SCALES_LAYOUT, block_size, heads, 1))
    return found


def kv_of(
    cache: Tensor,
    spec: AttentionSpec | RotaryAndCacheSpec,
    layout: KVLayout,
    given: Tensor | None = None,
) -> PagedKV | QuantizedKV:
    """Return a layer's cache as a specification has it."""
    sizes = (spec.block_size, spec.num_kv_heads, spec.head_dim)
    if spec.kv_dtype not in LIMITS:
        return PagedKV(cache, layout, *sizes, spec.v_head_dim)
    return QuantizedKV(cache, spec.kv_dtype, layout, sizes, spec.kv_scales, given)
