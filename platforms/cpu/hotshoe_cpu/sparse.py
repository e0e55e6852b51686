"""Candidates `native` of slots `indexer` and `sparse_mla_attention`: in C++, float32 inside.

Writing is core's references: calls of PyTorch over a step's tokens. What grows with the text is
computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    IndexerSpec,
    LatentAdapters,
    MlaAttentionSpec,
    SparseMlaSpec,
    Verdict,
)
from hotshoe.slots.reference import indexer, sparse_mla_attention
from hotshoe_cpu import rows
from hotshoe_cpu.latent import Absorbed
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports_choice(spec: IndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, _refusals(spec, spec.top_k))


def supports(spec: SparseMlaSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    reasons = {**_refusals(spec.attention, spec.top_k), "sinks beside chosen tokens": spec.sinks}
    return judge(facts, spec.dtype, reasons)


def _refusals(spec: MlaAttentionSpec | IndexerSpec, top_k: int) -> dict[str, bool]:
    return {**rows.refusals(spec), f"top_k {top_k} is not positive": top_k < 1}


class Indexer(indexer.Indexer):
    """See `hotshoe.slots.IndexerOp`."""

    def __init__(self, spec: IndexerSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._kernel = kernels(facts).index_tokens
        self._sizes = (spec.num_heads, spec.head_dim, spec.block_size, spec.top_k)
        self._codes = (DTYPE_CODES[spec.dtype], rows.CODES[spec.kv_dtype])

    def __call__(
        self, q: Tensor, weights: Tensor, cache: Tensor, prepared: AttentionMetadata
    ) -> Tensor:
        q, weights, table = q.contiguous(), weights.contiguous(), prepared.block_table
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.full((len(q), self._sizes[-1]), -1, dtype=torch.int32)
        self._kernel(
            out.data_ptr(),
            q.data_ptr(),
            weights.data_ptr(),
            cache.data_ptr(),
            *rows.strides(cache),
            table.data_ptr(),
            table.stride(0),
            prepared.query_start_loc.data_ptr(),
            prepared.seq_lens.data_ptr(),
            prepared.num_reqs,
            *self._sizes,
            *self._codes,
        )
        return out


class SparseMlaAttention(sparse_mla_attention.SparseMlaAttention):
    """See `hotshoe.slots.SparseMlaOp`."""

    def __init__(self, spec: SparseMlaSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._absorbed = Absorbed(spec.attention, facts)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        chosen: Tensor,
        adapters: LatentAdapters | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        up, chosen = self._dense.up, chosen.contiguous()
        return self._absorbed(q, cache, prepared, up, chosen, adapters)
