"""Candidates `native` of slots `compress` and `compressed_attention`: in C++, float32 inside.

Writing and rotating a step's tokens is core's references: calls of PyTorch. What grows with the
text, and entries, are computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, CompressedAttentionSpec, CompressSpec, Verdict
from hotshoe.slots.reference import accepts, compressed
from hotshoe_cpu import rows
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports(spec: CompressSpec | CompressedAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    known = accepts.supports(spec, facts)
    return judge(facts, spec.dtype, rows.refusals(spec)) if known.accepted else known


class Compress(compressed.Compress):
    """See `hotshoe.slots.CompressOp`."""

    def __init__(self, spec: CompressSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._kernel = kernels(facts).compress
        eps = 0.0 if spec.norm_eps is None else spec.norm_eps
        sizes = (spec.head_dim, spec.rope_dim, spec.group, 1 + spec.overlap, spec.block_size)
        self._numbers = (*sizes, eps, DTYPE_CODES[spec.dtype], DTYPE_CODES[spec.kv_dtype])

    def __call__(
        self,
        tokens: Tensor,
        entries: Tensor,
        steps: tuple[AttentionMetadata, AttentionMetadata],
        bias: Tensor,
        norm: Tensor | None,
        cos_sin: Tensor,
    ) -> None:
        step, own = steps
        self._kernel(
            tokens.data_ptr(),
            *rows.strides(tokens),
            step.block_table.data_ptr(),
            step.block_table.stride(0),
            entries.data_ptr(),
            *rows.strides(entries),
            own.block_table.data_ptr(),
            own.block_table.stride(0),
            step.query_start_loc.data_ptr(),
            step.seq_lens.data_ptr(),
            step.num_reqs,
            bias.data_ptr(),
            0 if norm is None else norm.data_ptr(),
            cos_sin.data_ptr(),
            *self._numbers,
        )


class CompressedAttention(compressed.CompressedAttention):
    """See `hotshoe.slots.CompressedAttentionOp`."""

    def __init__(self, spec: CompressedAttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._kernel = kernels(facts).compressed_attention
        sizes = (spec.num_heads, spec.head_dim, spec.rope_dim, spec.window, spec.group or 0)
        self._sizes = (*sizes, spec.block_size)
        self._numbers = (spec.scale, DTYPE_CODES[spec.dtype], DTYPE_CODES[spec.kv_dtype])

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        entries: tuple[Tensor, AttentionMetadata, Tensor | None] | None,
        sinks: Tensor,
        cos_sin: Tensor,
    ) -> Tensor:
        q = q.contiguous()
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.zeros_like(q)
        others, top_k, chosen = (0, 0, 0, 0, 0), 0, None
        if entries is not None:
            held, step, chosen = entries
            table = step.block_table
            others = (held.data_ptr(), *rows.strides(held), table.data_ptr(), table.stride(0))
        if chosen is not None:
            chosen, top_k = chosen.contiguous(), chosen.size(1)
        self._kernel(
            out.data_ptr(),
            q.data_ptr(),
            cache.data_ptr(),
            *rows.strides(cache),
            prepared.block_table.data_ptr(),
            prepared.block_table.stride(0),
            *others,
            0 if chosen is None else chosen.data_ptr(),
            prepared.query_start_loc.data_ptr(),
            prepared.seq_lens.data_ptr(),
            prepared.num_reqs,
            sinks.data_ptr(),
            cos_sin.data_ptr(),
            *self._sizes,
            top_k,
            *self._numbers,
        )
        return out.flatten(1)
