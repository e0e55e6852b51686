"""Candidate `native` of slot `mla_attention`: in C++ over rows of every form.

Requests whose queries are few beside their rows are computed the absorbed way, over rows as they
lie. For others, which are prompts, keys and values of some heads at a time are made of the rows,
and the kernel of slot `attention` reads these. Writing is core's reference: calls of PyTorch over
a step's tokens.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
    LatentAdapters,
    MlaAttentionSpec,
    Verdict,
)
from hotshoe.slots.reference import mla_attention
from hotshoe.slots.reference.rows import unpacked
from hotshoe_cpu import attention, kv, rows
from hotshoe_cpu.native import DTYPE_CODES, judge, kernels

#: Keys and values that are made of rows at once; at least those of one head.
MADE_BYTES = 32 << 20
#: Tokens of a block of these.
BLOCK = 32


def supports(spec: MlaAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge types; sizes are free."""
    return judge(facts, spec.dtype, rows.refusals(spec))


class Absorbed:
    """Attention to rows as they lie, all of them or chosen ones."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self._kernel = kernels(facts).latent_attention
        self._sizes = (spec.num_heads, spec.latent_dim, spec.rope_dim, spec.block_size)
        self._numbers = (spec.scale, DTYPE_CODES[spec.dtype], rows.CODES[spec.kv_dtype])

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        up: Tensor,
        chosen: Tensor | None = None,
        adapters: LatentAdapters | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Return [tokens, num_heads * v_dim]; see `MlaAttentionOp` and `SparseMlaOp`."""
        spec, table = self._spec, prepared.block_table
        plain = q[..., : spec.nope_dim].transpose(0, 1)
        wide = torch.bmm(plain, up[:, : spec.nope_dim]).transpose(0, 1)
        if adapters is not None:
            wide = wide.contiguous()
            adapters.widen(wide, q.contiguous())
        wide = torch.cat((wide, q[..., spec.nope_dim :]), dim=-1)
        # Rows behind the last request's are padding of the batch, if anything.
        mixed = q.new_zeros((len(q), spec.num_heads, spec.latent_dim))
        self._kernel(
            mixed.data_ptr(),
            wide.data_ptr(),
            cache.data_ptr(),
            *rows.strides(cache),
            0 if chosen is None else chosen.data_ptr(),
            table.data_ptr(),
            table.stride(0),
            prepared.query_start_loc.data_ptr(),
            prepared.seq_lens.data_ptr(),
            prepared.num_reqs,
            0 if sinks is None else sinks.data_ptr(),
            *self._sizes,
            0 if chosen is None else chosen.size(1),
            *self._numbers,
        )
        to_values = up[:, spec.nope_dim :].transpose(1, 2)
        out = torch.bmm(mixed.transpose(0, 1), to_values).transpose(0, 1).contiguous()
        if adapters is not None:
            adapters.values(out, mixed)
        return out.flatten(1)


class Projected:
    """Attention of one request to the keys and values that its rows stand for."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        width = spec.nope_dim + spec.rope_dim
        self._spec, self._facts = spec, facts
        # Values take as many channels as keys, which the kernel has for both.
        self._heads = AttentionSpec(
            spec.num_heads, spec.num_heads, width, spec.dtype, spec.dtype, BLOCK, spec.scale
        )
        self._size = 2 * width * kv.ITEM_BYTES[spec.dtype]
        self.usable = spec.v_dim <= width and attention.supports(self._heads, facts).accepted

    def __call__(self, q: Tensor, cache: Tensor, up: Tensor) -> Tensor:
        """Attend with the last len(q) positions to rows [seq_len, ...]; return [len(q), num_heads,
        v_dim]."""
        spec, length = self._spec, len(cache)
        found = unpacked(spec.row, cache).to(getattr(torch, spec.dtype))
        count = -(-length // BLOCK)
        table = torch.arange(count, dtype=torch.int32).unsqueeze(0)
        starts, lens = torch.tensor([0, len(q)]).int(), torch.tensor([length]).int()
        meta = AttentionMetadata(1, starts, lens, table, table, len(q), length)
        out = q.new_empty((len(q), spec.num_heads, spec.v_dim))
        step = max(1, MADE_BYTES // (self._size * length))
        for first in range(0, spec.num_heads, step):
            part = slice(first, first + step)
            made = self._made(found, up[part])
            heads = len(up[part])
            op = attention.Attention(
                replace(self._heads, num_heads=heads, num_kv_heads=heads), self._facts
            )
            out[:, part] = op(q[:, part], made, meta, None).view(len(q), heads, -1)[
                ..., : spec.v_dim
            ]
        return out

    def _made(self, found: Tensor, up: Tensor) -> Tensor:
        """Return keys and values [2, blocks, ...] of some heads as the kernel reads them."""
        spec, length, heads = self._spec, len(found), len(up)
        width, blocks = spec.nope_dim + spec.rope_dim, -(-length // BLOCK)
        both = torch.matmul(found[:, : spec.latent_dim], up.flatten(0, 1).T).view(length, heads, -1)
        wide = both.new_zeros((2, blocks * BLOCK, heads, width))
        wide[0, :length, :, : spec.nope_dim] = both[..., : spec.nope_dim]
        wide[0, :length, :, spec.nope_dim :] = found[:, None, spec.latent_dim :]
        wide[1, :length, :, : spec.v_dim] = both[..., spec.nope_dim :]
        p = kv.layout(spec.dtype).pack
        keys = wide[0].view(blocks, BLOCK, heads, width // p, p).permute(0, 2, 3, 1, 4)
        values = wide[1].view(blocks, BLOCK // p, p, heads, width).permute(0, 3, 1, 4, 2)
        return torch.stack((keys.flatten(1), values.flatten(1)))


class MlaAttention(mla_attention.MlaAttention):
    """See `hotshoe.slots.MlaAttentionOp`."""

    def __init__(self, spec: MlaAttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._absorbed, self._projected = Absorbed(spec, facts), Projected(spec, facts)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        adapters: LatentAdapters | None = None,
    ) -> Tensor:
        prompts = self._prompts(prepared) if adapters is None else {}
        if not prompts:
            return self._absorbed(q, cache, prepared, self.up, adapters=adapters)
        size, starts = self._spec.block_size, prepared.query_start_loc.tolist()
        out = q.new_zeros((len(q), self._spec.num_heads * self._spec.v_dim))
        for request, length in prompts.items():
            tokens = slice(starts[request], starts[request + 1])
            blocks = prepared.block_table[request, : -(-length // size)].long()
            found = cache[blocks].flatten(0, 1)[:length]
            out[tokens] = self._projected(q[tokens], found, self.up).flatten(1)
        others = [request for request in range(prepared.num_reqs) if request not in prompts]
        if others:
            at = torch.cat([torch.arange(*starts[request : request + 2]) for request in others])
            out[at] = self._absorbed(q[at], cache, of_requests(prepared, others), self.up)
        return out

    def _prompts(self, prepared: AttentionMetadata) -> dict[int, int]:
        """Return the lengths of requests for which making keys and values multiplies less."""
        if prepared.max_query_len == 1 or not self._projected.usable:
            return {}
        starts, lengths = prepared.query_start_loc.tolist(), prepared.seq_lens.tolist()
        counts = [end - begin for begin, end in pairwise(starts)]
        return {
            request: lengths[request]
            for request, count in enumerate(counts[: prepared.num_reqs])
            if count and not mla_attention.absorbs(self._spec, count, lengths[request])
        }


def of_requests(prepared: AttentionMetadata, requests: list[int]) -> AttentionMetadata:
    """Return some requests of a step, as if there were no others."""
    counts = prepared.query_start_loc.diff()[requests]
    starts = torch.cat((counts.new_zeros(1), counts.cumsum(0))).int()
    return replace(
        prepared,
        num_reqs=len(requests),
        query_start_loc=starts,
        seq_lens=prepared.seq_lens[requests],
        block_table=prepared.block_table[requests],
    )
