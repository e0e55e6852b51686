"""Collects one request's keys and values from their blocks into contiguous tensors.

The module imports no torch, as a process that compiles kernels has none.
"""

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots import AttentionSpec


@triton.jit
def copy_blocks(
    out_ptr, cache_ptr, blocks_ptr, cache_stride, block_stride, out_stride, NUM_TOKENS,
    NUM_KV_HEADS: tl.constexpr, PIECE: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks, kv heads, 2). A head's part of a block is PIECE neighboring elements."""
    page, head, which = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    block = tl.load(blocks_ptr + page).to(tl.int64)
    at = tl.arange(0, BLOCK)
    source = cache_ptr + which.to(tl.int64) * cache_stride + block * block_stride + head * PIECE
    target = out_ptr + (which * NUM_KV_HEADS + head).to(tl.int64) * out_stride + page * PIECE
    there = (at < PIECE) & (page * PIECE + at < NUM_TOKENS * HEAD_DIM)
    tl.store(target + at, tl.load(source + at, mask=there), mask=there)


def gather_blocks(
    cache: "Tensor", blocks: "Tensor", num_tokens: int, spec: "AttentionSpec"
) -> tuple["Tensor", "Tensor"]:
    """Return keys and values, each [1, num_kv_heads, num_tokens, head_dim].

    Args:
        cache: [2, num_blocks, block_numel] in the head-major layout.
        blocks: [at least as many as the tokens take] int32.
        num_tokens: The request's length.
        spec: The attention's specification.
    """
    heads, head_dim = spec.num_kv_heads, spec.head_dim
    out = cache.new_empty((2, 1, heads, num_tokens, head_dim))
    piece = spec.block_size * head_dim
    grid = (-(-num_tokens // spec.block_size), heads, 2)
    copy_blocks[grid](
        out, cache, blocks, cache.stride(0), cache.stride(1), out.stride(2), num_tokens,
        NUM_KV_HEADS=heads, PIECE=piece, HEAD_DIM=head_dim, BLOCK=triton.next_power_of_2(piece),
        num_warps=4,
    )  # fmt: skip
    return out[0], out[1]
