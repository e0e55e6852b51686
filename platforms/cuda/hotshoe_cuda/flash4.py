"""Candidate `flash4` of slot `attention`: prompts by FlashAttention 4, decoding by Triton.

It is known from its documentation, not from a run: it scores below the Triton kernels, so that it
is taken only when it is asked for (`--kernel attention=flash4`). Blocks are handed over where they
lie, as strided views. Source: `flash_attn.cute.flash_attn_varlen_func` of
Dao-AILab/flash-attention, folder flash_attn/cute.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, Verdict, accept_unless
from hotshoe_triton import attention
from hotshoe_triton.packages import hindrance

SCORE = 40
DISTRIBUTION, RELEASES = "flash-attn-4", ("4.0",)
#: Its kernels for smaller GPUs take no blocks.
ARCHS = ("sm_90", "sm_100", "sm_103")
DTYPES = ("bfloat16", "float16")
HEAD_DIMS = (64, 96, 128)
#: Of a whole tile of keys, what nobody owns would be multiplied by zero, and it may be NaN.
MAX_BLOCK_SIZE = 64


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge what its kernels are built for; the rest as for Triton, whose cache it reads."""
    paged = attention.supports(spec, facts)
    if not paged.accepted:
        return paged
    missing = hindrance(DISTRIBUTION, RELEASES)
    refusals = {
        missing: bool(missing),
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
        f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}": spec.kv_dtype != spec.dtype,
        f"FlashAttention 4 takes no blocks on {facts.arch}, but on {', '.join(ARCHS)}": facts.arch
        not in ARCHS,
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"head_dim {spec.head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}": spec.head_dim
        not in HEAD_DIMS,
        f"block_size {spec.block_size} exceeds {MAX_BLOCK_SIZE}": spec.block_size > MAX_BLOCK_SIZE,
    }
    note = "FlashAttention 4 for prompts; chosen by name alone while Triton serves too"
    return accept_unless(refusals, SCORE, note)


class Attention(attention.Attention):
    """See `hotshoe.slots.AttentionOp`."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._prompts: Any = importlib.import_module("flash_attn.cute").flash_attn_varlen_func
        self._shape = (spec.num_kv_heads, spec.block_size, spec.head_dim)
        self._options = {
            "softmax_scale": spec.scale,
            "causal": True,
            # Keys to the left of a query's own that it sees, and to the right; None: all.
            "window_size": (None, None) if spec.window is None else (spec.window - 1, 0),
            "softcap": spec.softcap or 0.0,
        }

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        if prepared.max_query_len <= 1:
            return super().__call__(q, cache, prepared, sinks)
        # [blocks, heads, tokens, head_dim] as [blocks, tokens, heads, head_dim]
        k, v = (part.view(-1, *self._shape).transpose(1, 2) for part in cache)
        found = self._prompts(
            q,
            k,
            v,
            cu_seqlens_q=prepared.query_start_loc,
            max_seqlen_q=prepared.max_query_len,
            seqused_k=prepared.seq_lens,
            page_table=prepared.block_table,
            learnable_sink=sinks,
            **self._options,
        )
        out: Tensor = found[0] if isinstance(found, tuple) else found  # sums of weights follow
        return out.flatten(1)
