"""Candidate `flash3` of slot `attention`: prompts by FlashAttention 3, the rest as `streaming`.

The package is taken where it is installed, and imported when an operation is built, never to find
out whether it is there. Blocks are handed over where they lie, as strided views. Source:
`flash_attn_with_kvcache` of Dao-AILab/flash-attention, folder hopper.
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, Verdict, accept_unless
from hotshoe_cuda import decode
from hotshoe_triton import attention
from hotshoe_triton.packages import hindrance

#: On an H200 prompts take 0.5 to 0.9 of cuDNN's time, and 0.7 of Triton's. Steps that only decode
#: take 1.1 to 1.16 of Triton's from 32 sequences on.
SCORE = 70
PACKAGE = "flash_attn_interface"
DISTRIBUTION, RELEASES = "flash_attn_3", ("3.0",)
DTYPES = ("bfloat16", "float16")
#: Of an 8-bit cache.
EIGHT_BITS = "float8_e4m3fn"
#: A block that is a multiple of a kernel's tile of keys is copied whole, and the values behind a
#: request's end are multiplied by zero: what nobody owns may be NaN. Up to a head_dim, the largest
#: size that is no multiple.
MAX_BLOCK_SIZES = {192: 64, 256: 32}


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what its kernels are built for; the rest as for Triton, whose cache it reads."""
    paged = attention.supports(spec, facts)
    if not paged.accepted:
        return paged
    missing = hindrance(DISTRIBUTION, RELEASES)
    largest = next(size for dim, size in MAX_BLOCK_SIZES.items() if spec.head_dim <= dim)
    refusals = {
        f"keys and values of {EIGHT_BITS} are multiplied by queries rounded to that, too, which "
        f"are of {spec.dtype} here": spec.kv_dtype == EIGHT_BITS,
        f"keys and values of {spec.kv_dtype} are not read, but of dtype {spec.dtype}": spec.kv_dtype
        not in (spec.dtype, EIGHT_BITS),
        missing: bool(missing),
        f"FlashAttention 3 has no kernels for {facts.arch}, but for sm_90": facts.arch != "sm_90",
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        "sinks are not computed": spec.sinks,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
        f"block_size {spec.block_size} exceeds {largest}: blocks are copied with what is behind "
        "a request's end": spec.block_size > largest,
    }
    return accept_unless(refusals, SCORE, "FlashAttention 3 for prompts")


class Attention(decode.Attention):
    """See `hotshoe.slots.AttentionOp`. Building it starts the kernel once."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._prompts = importlib.import_module(PACKAGE).flash_attn_with_kvcache
        self._shape = (spec.num_kv_heads, spec.block_size, spec.head_dim)
        self._options = {
            "softmax_scale": spec.scale,
            "causal": True,
            # Keys to the left of a query's own that it sees, and to the right; -1: all.
            "window_size": (-1 if spec.window is None else spec.window - 1, 0),
            "softcap": spec.softcap or 0.0,
        }
        self._run_once(spec, facts)

    def _run_once(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        """Load the kernel, or fail while there is another candidate: builds may leave some out."""
        dtype, device = getattr(torch, spec.dtype), facts.device
        heads, size, dim = self._shape
        q = torch.zeros((1, spec.num_heads, dim), dtype=dtype, device=device)
        cache = torch.zeros((2, 1, heads * size * dim), dtype=dtype, device=device)
        starts = torch.arange(2, dtype=torch.int32, device=device)
        zero, one = starts[:1], starts[1:]
        self._compute(q, cache, AttentionMetadata(1, starts, one, zero[None], zero, 1, 1))

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        if prepared.max_query_len <= 1:
            return super().__call__(q, cache, prepared, sinks)
        return self._compute(q, cache, prepared)

    def _compute(self, q: Tensor, cache: Tensor, prepared: AttentionMetadata) -> Tensor:
        # [blocks, heads, tokens, head_dim] as [blocks, tokens, heads, head_dim]
        k, v = (part.view(-1, *self._shape).transpose(1, 2) for part in cache)
        out: Tensor = self._prompts(
            q,
            k,
            v,
            cache_seqlens=prepared.seq_lens,
            page_table=prepared.block_table,
            cu_seqlens_q=prepared.query_start_loc,
            max_seqlen_q=prepared.max_query_len,
            **self._options,
        )
        return out.flatten(1)
