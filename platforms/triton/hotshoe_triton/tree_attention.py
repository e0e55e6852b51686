"""Candidate of slot `tree_attention`, over the cache of `attention.py`.

The host chooses by a step's sizes, or the largest that a recording serves, among how many programs
the keys of a tile are shared at most. Each tile shares those of its request alike.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    TreeAttentionSpec,
    TreeNodes,
    Verdict,
    refuse,
    tree_refusal,
)
from hotshoe_triton import attention, kv
from hotshoe_triton.attention import (
    LAYOUT,
    MIN_ROWS,
    NARROW_PREFILL,
    PREFILL,
    Tiling,
    prefilling,
    tiling,
)
from hotshoe_triton.device import arch_of, chaining, next_power_of_2

#: Rows of a tile, as far as prompts have larger ones; on Hopper tiles of 128 rows were no faster.
ROWS = 64
#: Pieces whose averages are held at once where they are joined: for few pieces, and for more.
JOINED = (16, 64)


def supports(spec: TreeAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what trees lack."""
    reason = tree_refusal(spec, LAYOUT)
    return refuse(reason) if reason else attention.supports(spec.attention, facts)


def tiling_of(spec: TreeAttentionSpec, facts: DeviceFacts) -> Tiling:
    """Choose a tiling."""
    own = spec.attention
    found = tiling((PREFILL, NARROW_PREFILL), own, arch_of(facts))
    if found.rows <= ROWS:
        return found
    return replace(found, rows=ROWS, warps=4 if own.head_dim <= 128 else found.warps)


class TreeAttention:
    """See `hotshoe.slots.TreeAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
    """

    def __init__(
        self,
        spec: TreeAttentionSpec,
        facts: DeviceFacts,
        tiling: Tiling | None = None,
    ) -> None:
        from hotshoe_triton.kernels.trees import join_pieces, tree_attention

        own = self._spec = spec.attention
        self._kernel, self._join_kernel = tree_attention, join_pieces
        self._group = own.num_heads // own.num_kv_heads
        shared = {
            "NUM_HEADS": own.num_heads,
            "HEAD_DIM": own.head_dim,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(own.head_dim)),
        } | chaining(facts)
        self._joining = shared
        reading = {
            "GROUP": self._group,
            "BLOCK_SIZE": own.block_size,
            "SCALE": own.scale,
            "SOFTCAP": own.softcap or 0.0,
            "SINKS": own.sinks,
        }
        reading |= shared | kv.constants(own)
        tiling = tiling or tiling_of(spec, facts)
        self._reading = reading | prefilling(tiling, self._group)
        self._programs = facts.compute_units * tiling.programs_per_unit // own.num_kv_heads
        self._keys, self._least = tiling.keys, -(-tiling.share // tiling.keys)
        self._cache: Tensor | None = None

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        nodes: TreeNodes,
        sinks: Tensor | None,
    ) -> Tensor:
        if cache is not self._cache:
            self._cache, self._planes = cache, kv.planes(cache, self._spec, None)
        assert (sinks is not None) == self._spec.sinks
        step, tokens, heads, dim = prepared, q.size(0), self._spec.num_heads, self._spec.head_dim
        out = torch.empty((tokens, heads * dim), dtype=q.dtype, device=q.device)
        if not step.num_reqs:
            return out
        tiles = tokens // (self._reading["BLOCK_M"] // self._group) + step.num_reqs
        pieces = self._pieces(tiles, step.max_seq_len)
        held = pieces * tokens * heads if pieces > 1 else 0
        scratch = torch.empty(held * (dim + 2) + 1, dtype=torch.float32, device=q.device)
        found = scratch, scratch[held * dim :]
        self._kernel[(self._spec.num_kv_heads, tiles, pieces)](
            out,
            q,
            *self._planes.tensors,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            q if sinks is None else sinks,
            nodes.counts,
            nodes.ancestors,
            *found,
            step.num_reqs,
            self._least,
            q.stride(0),
            step.block_table.stride(0),
            self._planes.stride,
            **self._reading,
        )
        if pieces > 1:
            starts, size = step.query_start_loc, (step.num_reqs, pieces)
            self._join_kernel[(tokens, heads)](
                out, *found, starts, *size, BLOCK_P=JOINED[pieces > JOINED[0]], **self._joining
            )
        return out

    def _pieces(self, tiles: int, longest: int) -> int:
        """Return among how many programs the keys of a tile go.

        Args:
            tiles: Of queries, for each KV head.
            longest: Keys of the longest request.
        """
        most = -(-longest // (self._keys * self._least))
        return max(1, min(self._programs // tiles, most))
