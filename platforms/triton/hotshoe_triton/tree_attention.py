"""Candidate of slot `tree_attention`, over the cache of `attention.py`; and how such kernels run.

The host chooses by a step's sizes, or the largest that a recording serves, among how many programs
the keys of a tile are shared at most. Each tile shares those of its request alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
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


def tiling_of(spec: AttentionSpec, facts: DeviceFacts) -> Tiling:
    """Choose a tiling."""
    found = tiling((PREFILL, NARROW_PREFILL), spec, arch_of(facts))
    if found.rows <= ROWS:
        return found
    return replace(found, rows=ROWS, warps=4 if spec.head_dim <= 128 else found.warps)


class SharedTiles:
    """Attention whose programs share the keys of a tile of queries.

    Args:
        kernel: Has arguments and grid of `kernels.trees.tree_attention`; its own tensors stand
            behind the lengths of requests.
        spec: Heads and cache.
        facts: The device.
        tiling: Of a program's work.
        constants: The kernel's own.
    """

    def __init__(
        self,
        kernel: Any,
        spec: AttentionSpec,
        facts: DeviceFacts,
        tiling: Tiling,
        constants: dict[str, Any],
    ) -> None:
        from hotshoe_triton.kernels.trees import join_pieces

        self._kernel, self._join_kernel, self._spec = kernel, join_pieces, spec
        self._group = spec.num_heads // spec.num_kv_heads
        self._joining = {
            "NUM_HEADS": spec.num_heads,
            "HEAD_DIM": spec.head_dim,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
        } | chaining(facts)
        self._reading = self._joining | {
            "GROUP": self._group,
            "BLOCK_SIZE": spec.block_size,
            "SCALE": spec.scale,
            **kv.constants(spec),
            **prefilling(tiling, self._group),
            **constants,
        }
        self._programs = facts.compute_units * tiling.programs_per_unit // spec.num_kv_heads
        self._keys, self._least = tiling.keys, -(-tiling.share // tiling.keys)
        self._cache: Tensor | None = None

    def _bind(self, cache: Tensor, scales: Tensor | None) -> None:
        """Look at a cache, unless it is that of the last call."""
        if cache is not self._cache:
            self._cache, self._planes = cache, kv.planes(cache, self._spec, scales)

    def _run(
        self,
        out: Tensor,
        q: Tensor,
        step: AttentionMetadata,
        own: Sequence[Tensor],
        **constants: Any,
    ) -> None:
        """Compute a step over the cache that was bound.

        Args:
            out: [num_tokens, num_heads * head_dim], where results go.
            own: The kernel's own tensors.
            constants: Instead of those from the beginning.
        """
        tokens, heads, dim = q.size(0), self._spec.num_heads, self._spec.head_dim
        reading = self._reading | constants
        tiles = tokens // (reading["BLOCK_M"] // self._group) + step.num_reqs
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
            *own,
            *found,
            step.num_reqs,
            self._least,
            q.stride(0),
            step.block_table.stride(0),
            self._planes.stride,
            **reading,
        )
        if pieces > 1:
            starts, size = step.query_start_loc, (step.num_reqs, pieces)
            self._join_kernel[(tokens, heads)](
                out, *found, starts, *size, BLOCK_P=JOINED[pieces > JOINED[0]], **self._joining
            )

    def _pieces(self, tiles: int, longest: int) -> int:
        """Return among how many programs the keys of a tile go.

        Args:
            tiles: Of queries, for each KV head.
            longest: Keys of the longest request.
        """
        most = -(-longest // (self._keys * self._least))
        return max(1, min(self._programs // tiles, most))


class TreeAttention(SharedTiles):
    """See `hotshoe.slots.TreeAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
    """

    def __init__(
        self, spec: TreeAttentionSpec, facts: DeviceFacts, tiling: Tiling | None = None
    ) -> None:
        from hotshoe_triton.kernels.trees import tree_attention

        own = spec.attention
        constants = {"SOFTCAP": own.softcap or 0.0, "SINKS": own.sinks}
        super().__init__(tree_attention, own, facts, tiling or tiling_of(own, facts), constants)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        nodes: TreeNodes,
        sinks: Tensor | None,
    ) -> Tensor:
        self._bind(cache, None)
        assert (sinks is not None) == self._spec.sinks
        width = self._spec.num_heads * self._spec.head_dim
        out = torch.empty((q.size(0), width), dtype=q.dtype, device=q.device)
        if prepared.num_reqs:
            own = q if sinks is None else sinks, nodes.counts, nodes.ancestors
            self._run(out, q, prepared, own)
        return out
