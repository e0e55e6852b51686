"""Candidates `native` of slots `indexer` and `sparse_mla_attention`: in C++, float32 inside.

Writing, and the products with the matrix of keys and values, are core's references: calls of
PyTorch over a step's tokens. What grows with the text is computed here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, IndexerSpec, SparseMlaSpec, Verdict
from hotshoe.slots.reference import indexer, sparse_mla_attention
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels


def supports_choice(spec: IndexerSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, _refusals(spec.kv_dtype, spec.top_k))


def supports(spec: SparseMlaSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, _refusals(spec.attention.kv_dtype, spec.top_k))


def _refusals(kv_dtype: str, top_k: int) -> dict[str, bool]:
    return {
        f"kv_dtype {kv_dtype} is not one of {', '.join(DTYPE_CODES)}": kv_dtype not in DTYPE_CODES,
        f"top_k {top_k} is not positive": top_k < 1,
    }


class Indexer(indexer.Indexer):
    """See `hotshoe.slots.IndexerOp`."""

    def __init__(self, spec: IndexerSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._kernel = kernels(facts).index_tokens
        self._sizes = (spec.num_heads, spec.head_dim, spec.block_size, spec.top_k)
        self._codes = (DTYPE_CODES[spec.dtype], DTYPE_CODES[spec.kv_dtype])

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
            cache.stride(0),
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
        own = spec.attention
        self._kernel = kernels(facts).sparse_attention
        self._sizes = (own.num_heads, own.row.channels, own.latent_dim, own.block_size, spec.top_k)
        self._numbers = (own.scale, DTYPE_CODES[own.dtype], DTYPE_CODES[own.kv_dtype])

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, chosen: Tensor
    ) -> Tensor:
        spec, up = self._spec, self._dense.up
        plain = q[..., : spec.nope_dim].transpose(0, 1)
        wide = torch.bmm(plain, up[:, : spec.nope_dim]).transpose(0, 1)
        wide = torch.cat((wide, q[..., spec.nope_dim :]), dim=-1)
        chosen, table = chosen.contiguous(), prepared.block_table
        mixed = q.new_zeros((len(q), spec.num_heads, spec.latent_dim))
        self._kernel(
            mixed.data_ptr(),
            wide.data_ptr(),
            cache.data_ptr(),
            cache.stride(0),
            chosen.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            prepared.query_start_loc.data_ptr(),
            prepared.num_reqs,
            *self._sizes,
            *self._numbers,
        )
        to_values = up[:, spec.nope_dim :].transpose(1, 2)
        return torch.bmm(mixed.transpose(0, 1), to_values).transpose(0, 1).flatten(1)
