"""The choice of blocks of cached tokens: a score of each block that a query sees.

Shape suffixes: H heads, D channels, N keys.
"""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait
from hotshoe_triton.kernels.indexer import seen_by


@triton.jit(do_not_specialize=["first", "num_reqs", "blocks", "table_stride"])
def block_scores(
    scores_ptr,  # [tokens of this launch, HEADS, blocks] float32
    q_ptr,  # [tokens, HEADS, D], rotated
    cache_ptr,  # [blocks of the cache, BLOCK_SIZE, WIDTH], rows as `indexer.py` has them
    scales_ptr, table_ptr, starts_ptr, lens_ptr, first, num_reqs, blocks,
    q_stride, table_stride, block_stride,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SCALED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, LOCAL: tl.constexpr,
    TILES: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Score TILES blocks for one query: infinity for those that are chosen in any case, and its
    negative for those that the query does not see. Grid: (tokens, blocks / TILES)."""
    wait(CHAINED)
    token, begin = first + tl.program_id(0), tl.program_id(1) * TILES
    request, seen = seen_by(token, starts_ptr, lens_ptr, num_reqs, BLOCK_R)
    own = tl.where(seen > 0, (seen - 1) // GROUP, -1)
    head_H, channel_D = tl.arange(0, BLOCK_H), tl.arange(0, BLOCK_D)
    q_ptr += token.to(tl.int64) * q_stride
    there_HD = (head_H < HEADS)[:, None] & (channel_D < D)[None, :]
    q_HD = tl.load(q_ptr + head_H[:, None] * D + channel_D[None, :], mask=there_HD, other=0.0)
    table_ptr += request.to(tl.int64) * table_stride
    scores_ptr += tl.program_id(0).to(tl.int64) * HEADS * blocks
    for block in range(begin, tl.minimum(begin + TILES, blocks)):
        best_H = tl.full((BLOCK_H,), float("-inf"), tl.float32)
        if block > own - LOCAL:
            best_H = tl.where(block <= own, -best_H, best_H)
        else:  # all of it is seen
            for inner in range(0, GROUP, BLOCK_N):
                inner_N = inner + tl.arange(0, BLOCK_N)
                there_N = inner_N < GROUP
                key_N = block * GROUP + inner_N
                held_N = tl.load(table_ptr + key_N // BLOCK_SIZE, mask=there_N, other=0)
                inside_N, held_N = key_N % BLOCK_SIZE, held_N.to(tl.int64)
                row_N = held_N * block_stride + inside_N * WIDTH
                there_ND = there_N[:, None] & (channel_D < D)[None, :]
                ptrs_ND = cache_ptr + row_N[:, None] + channel_D[None, :]
                k_ND = tl.load(ptrs_ND, mask=there_ND, other=0.0).to(q_HD.dtype)
                each_HN = tl.dot(q_HD, tl.trans(k_ND), input_precision="ieee")
                if SCALED:
                    at_N = held_N * (block_stride // 4) + inside_N * (WIDTH // 4) + D // 4
                    each_HN *= tl.load(scales_ptr + at_N, mask=there_N, other=0.0)[None, :]
                each_HN = tl.where(there_N[None, :], each_HN, float("-inf"))
                best_H = tl.maximum(best_H, tl.max(each_HN, 1))
        tl.store(scores_ptr + head_H * blocks + block, best_H, mask=head_H < HEADS)
