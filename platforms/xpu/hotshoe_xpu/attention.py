"""Candidate `sdpa` of slot `attention`: keys and values are collected from their blocks, then
PyTorch's scaled dot product attention computes them, which oneDNN does on these devices.

Requests with one query share a call; others are computed one by one. Reads the layout that the
Triton kernels read and write, so that either can serve beside the other.

Shape suffixes: R requests, B blocks, H heads, K KV heads, L keys, Q queries, D head_dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, Verdict, accept_unless, whole_step
from hotshoe_triton.attention import LAYOUT

SCORE = 40
DTYPES = ("bfloat16", "float16", "float32")
#: What the collected keys and values of one call, and its mask, may take.
PIECE_BYTES = 256 << 20
MASK_CELLS = 64 << 20


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and what the call has no argument for."""
    refusals = {
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}": spec.kv_dtype != spec.dtype,
        f"v_head_dim {spec.v_head_dim} differs from head_dim {spec.head_dim}": spec.value_dim
        != spec.head_dim,
        "soft caps are not computed": spec.softcap is not None,
        "sinks are not computed": spec.sinks,
        "scores do not fall with the distance (ALiBi)": spec.alibi is not None,
    }
    return accept_unless(refusals, SCORE, "oneDNN through PyTorch, from collected keys and values")


class Attention:
    """See `hotshoe.slots.AttentionOp`."""

    layout = LAYOUT
    prepare = staticmethod(whole_step)

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        self._spec = spec

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lens = prepared.host_lens
        if lens is None:  # a recorded step's lengths lie on the device alone
            counts = prepared.query_start_loc.diff().tolist()
            lens = (counts, prepared.seq_lens.tolist())
        at = 0
        for first, last in stretches(lens[0]):
            table = prepared.block_table[first:last]
            lengths = lens[1][first:last]
            end = at + sum(lens[0][first:last])
            if lens[0][first] == 1:
                seq_lens = prepared.seq_lens[first:last]
                self._decode(out[at:end], q[at:end], cache, table, lengths, seq_lens)
            else:
                self._prefill(out[at:end], q[at:end], cache, table, lengths[0])
            at = end
        return out.flatten(1)

    def _collect(self, cache: Tensor, table_RB: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [R, K, L, D] of whole blocks, in memory of their own."""
        spec = self._spec
        shape = (cache.size(1), spec.num_kv_heads, spec.block_size, spec.head_dim)
        rows, blocks = table_RB.shape
        k, v = (
            part.view(shape)
            .index_select(0, table_RB.flatten())
            .view(rows, blocks, *shape[1:])
            .transpose(1, 2)
            .flatten(2, 3)
            for part in cache
        )
        return k, v

    def _decode(
        self,
        out_RHD: Tensor,
        q_RHD: Tensor,
        cache: Tensor,
        table: Tensor,
        lengths: Sequence[int],
        seq_lens: Tensor,
    ) -> None:
        """Attend with one query of each request, in pieces that fit."""
        spec = self._spec
        block_bytes = 2 * spec.num_kv_heads * spec.block_size * spec.head_dim * cache.itemsize
        widest = -(-max(lengths) // spec.block_size)
        step = max(1, PIECE_BYTES // (widest * block_bytes))
        for first in range(0, len(lengths), step):
            part = slice(first, first + step)
            blocks = -(-max(lengths[part]) // spec.block_size)
            at_L = torch.arange(blocks * spec.block_size, device=q_RHD.device)
            ends_R1 = seq_lens[part, None]
            there_RL = at_L < ends_R1
            owned_RB = there_RL[:, :: spec.block_size]
            k, v = self._collect(cache, table[part, :blocks].masked_fill(~owned_RB, 0))
            # What lies behind the last token is not ours, and may be no number.
            for collected in (k, v):
                collected.masked_fill_(~there_RL[:, None, :, None], 0)
            seen_RL = there_RL
            if spec.window is not None:
                seen_RL = there_RL & (at_L >= ends_R1 - spec.window)
            # Heads that share a KV head are queries of it: one call without copies.
            grouped = q_RHD[part].unflatten(1, (spec.num_kv_heads, -1))
            found = scaled_dot_product_attention(
                grouped, k, v, attn_mask=seen_RL[:, None, None], scale=spec.scale
            )
            out_RHD[part] = found.flatten(1, 2)

    def _prefill(
        self, out_QHD: Tensor, q_QHD: Tensor, cache: Tensor, table: Tensor, length: int
    ) -> None:
        """Attend with the last queries of one request."""
        spec, count = self._spec, len(q_QHD)
        blocks = -(-length // spec.block_size)
        k, v = (x[:, :, :length] for x in self._collect(cache, table[:, :blocks]))
        q = q_QHD.transpose(0, 1)[None]
        if count == length and spec.window is None:
            found = scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=spec.scale, enable_gqa=True
            )
            out_QHD.copy_(found[0].transpose(0, 1))
            return
        at_L = torch.arange(length, device=q.device)
        step = max(1, MASK_CELLS // length)
        for first in range(0, count, step):
            rows = slice(first, min(first + step, count))
            own_Q1 = at_L[length - count :][rows, None]
            seen_QL = at_L <= own_Q1
            if spec.window is not None:
                seen_QL &= at_L > own_Q1 - spec.window
            found = scaled_dot_product_attention(
                q[:, :, rows], k, v, attn_mask=seen_QL, scale=spec.scale, enable_gqa=True
            )
            out_QHD[rows] = found[0].transpose(0, 1)


def stretches(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split a step into neighboring requests of one query each, and single others."""
    first = 0
    for i, count in enumerate(counts):
        alone = count != 1
        if alone and first < i:
            yield first, i
        if alone:
            yield i, i + 1
            first = i + 1
    if first < len(counts):
        yield first, len(counts)
