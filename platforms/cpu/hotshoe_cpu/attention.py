"""Candidate `native` of slot `attention`: paged attention in C++.

Declares the cache layout that the kernels multiply directly; `rotary.py` writes it.
"""

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, KVLayout, Verdict, whole_step
from hotshoe_cpu.kv import ITEM_BYTES, entry, layout, refusals, stored
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels

MAX_HEAD_DIM = 512
MIN_BLOCK_SIZE = 8
LINE_BYTES = 64


def declared_layout(spec: AttentionSpec, facts: DeviceFacts) -> KVLayout:
    """Say which layout the operation for a specification reads.

    A gap of a 64th of a block, in whole cache lines, spreads the blocks of one head over the sets
    of the second-level cache, which so holds what prompts read again and again.
    """
    size = ITEM_BYTES[spec.kv_dtype]
    numbers = spec.num_kv_heads * (spec.head_dim * size + 4 * (spec.kv_scales == "token"))
    block_lines = spec.block_size * numbers // LINE_BYTES
    return layout(spec.kv_dtype, -(-block_lines // 64) * LINE_BYTES // size)


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    size = spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            **refusals(spec),
            f"v_head_dim {spec.v_head_dim} differs from head_dim {spec.head_dim}": spec.value_dim
            != spec.head_dim,
            f"head_dim {spec.head_dim} is not a multiple of 8 up to {MAX_HEAD_DIM}": bool(
                spec.head_dim % 8 or spec.head_dim > MAX_HEAD_DIM
            ),
            f"block_size {size} is not a power of two from {MIN_BLOCK_SIZE}": bool(
                size < MIN_BLOCK_SIZE or size & (size - 1)
            ),
            f"scale {spec.scale} is not positive": not spec.scale > 0,
        },
    )


class Attention:
    """See `hotshoe.slots.AttentionOp`."""

    prepare = staticmethod(whole_step)
    kv_scales: Tensor | None = None

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        self.layout = declared_layout(spec, facts)
        self.kernel = entry(kernels(facts), "paged_attention", spec.kv_dtype)
        self._width = spec.num_heads * spec.head_dim
        self._heads = (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.block_size)
        self._head_stride = spec.block_size * spec.head_dim
        code = DTYPE_CODES[spec.dtype]
        self._numbers = (spec.scale, spec.window or 0, spec.softcap or 0.0, code)
        self._sinks = spec.sinks
        self._slopes = torch.tensor(spec.alibi.slopes(spec.num_heads)) if spec.alibi else None
        self._spec = spec
        self._cache: Tensor | None = None

    def _bind(self, cache: Tensor) -> None:
        self._cache = cache
        self._k = cache.data_ptr()
        self._v = self._k + cache.stride(0) * cache.itemsize
        self._block_stride = cache.stride(1)
        self._stored = stored(self._spec, self.kv_scales)

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        if cache is not self._cache:
            self._bind(cache)
        assert (sinks is not None) == self._sinks
        table = prepared.block_table
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(q.size(0), self._width, dtype=q.dtype)
        self.kernel(
            out.data_ptr(),
            q.data_ptr(),
            self._k,
            self._v,
            table.data_ptr(),
            prepared.query_start_loc.data_ptr(),
            prepared.seq_lens.data_ptr(),
            0 if sinks is None else sinks.data_ptr(),
            0 if self._slopes is None else self._slopes.data_ptr(),
            prepared.num_reqs,
            *self._heads,
            table.size(1),
            self._width,
            q.stride(0),
            self._block_stride,
            self._head_stride,
            table.stride(0),
            *self._numbers,
            *self._stored,
        )
        return out
