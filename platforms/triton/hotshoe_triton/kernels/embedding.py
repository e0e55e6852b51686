"""Row gather from an embedding table, times a constant."""

import triton
import triton.language as tl

from hotshoe_triton.kernels.chain import wait


@triton.jit
def embedding(
    out_ptr, ids_ptr, table_ptr, table_stride,
    SIZE: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Grid: (tokens, columns / BLOCK)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    wait(CHAINED)
    row = tl.load(ids_ptr + token).to(tl.int64)
    x = tl.load(table_ptr + row * table_stride + column, mask=column < SIZE, other=0.0)
    if SCALE != 1.0:
        x = (x.to(tl.float32) * SCALE).to(x.dtype)
    tl.store(out_ptr + token * SIZE + column, x, mask=column < SIZE)
