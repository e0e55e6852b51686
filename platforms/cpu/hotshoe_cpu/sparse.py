"""Candidates `native` of slots `indexer`, `block_indexer` and `sparse_mla_attention`: in C++,
float32 inside.

Writing is core's references: calls of PyTorch over a step's tokens. What grows with the text is
computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    BlockIndexerSpec,
    IndexerSpec,
    LatentAdapters,
    MlaAttentionSpec,
    SparseMlaSpec,
    Verdict,
)
from hotshoe.slots.reference import accepts, block_indexer, indexer, sparse_mla_attention
from hotshoe_cpu import rows
from hotshoe_cpu.latent import Absorbed
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports_choice(spec: IndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, _refusals(spec, spec.top_k))


def supports(spec: SparseMlaSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, _refusals(spec.attention, spec.top_k))


def supports_blocks(spec: BlockIndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    known = accepts.supports(spec, facts)
    return judge(facts, spec.dtype, rows.refusals(spec)) if known.accepted else known


def _refusals(spec: MlaAttentionSpec | IndexerSpec, top_k: int) -> dict[str, bool]:
    return {**rows.refusals(spec), f"top_k {top_k} is not positive": top_k < 1}


class _Choice:
    """The kernel of both choices; `group` tokens stand for one, and `local` last are forced."""

    def __init__(
        self, spec: IndexerSpec | BlockIndexerSpec, facts: DeviceFacts, group: int, local: int
    ) -> None:
        self._kernel, self._top_k = kernels(facts).index_tokens, spec.top_k
        sizes = (spec.num_heads, spec.head_dim, spec.block_size, spec.top_k, group, local)
        self._numbers = (*sizes, DTYPE_CODES[spec.dtype], rows.CODES[spec.kv_dtype])

    def __call__(
        self, q: Tensor, weights: Tensor | None, cache: Tensor, prepared: AttentionMetadata
    ) -> Tensor:
        """Choose for all heads together, or without weights for each."""
        q, table = q.contiguous(), prepared.block_table
        weights = None if weights is None else weights.contiguous()
        lists = q.shape[:2] if weights is None else q.shape[:1]
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.full((*lists, self._top_k), -1, dtype=torch.int32)
        self._kernel(
            out.data_ptr(),
            q.data_ptr(),
            0 if weights is None else weights.data_ptr(),
            cache.data_ptr(),
            *rows.strides(cache),
            table.data_ptr(),
            table.stride(0),
            prepared.query_start_loc.data_ptr(),
            prepared.seq_lens.data_ptr(),
            prepared.num_reqs,
            *self._numbers,
        )
        return out


class Indexer(indexer.Indexer):
    """See `hotshoe.slots.IndexerOp`."""

    def __init__(self, spec: IndexerSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._choose = _Choice(spec, facts, 1, 0)

    def __call__(
        self, q: Tensor, weights: Tensor, cache: Tensor, prepared: AttentionMetadata
    ) -> Tensor:
        return self._choose(q, weights, cache, prepared)


class BlockIndexer(block_indexer.BlockIndexer):
    """See `hotshoe.slots.BlockIndexerOp`."""

    def __init__(self, spec: BlockIndexerSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._choose = _Choice(spec, facts, spec.group, spec.local)

    def __call__(self, q: Tensor, cache: Tensor, prepared: AttentionMetadata) -> Tensor:
        return self._choose(q, None, cache, prepared)


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
        return self._absorbed(q, cache, prepared, up, chosen, adapters, sinks)
