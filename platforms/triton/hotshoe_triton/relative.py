"""Candidate of slot `relative_attention`, over the cache of `attention.py`.

The logits of a token for all distances are one product of its states and the profiles. The kernel
adds them to the scores. A prompt goes in slices of tokens, so that they stay few.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, RelativeAttentionSpec, Verdict, slices, whole_step
from hotshoe.slots.reference import accepts
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
from hotshoe_triton.tree_attention import JOINED

#: Logits of a slice of tokens.
LOGITS_BYTES = 256 << 20
#: Most rows of a tile, as each reads logits of its own.
ROWS = 64


def supports(spec: RelativeAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what no candidate serves."""
    verdict = accepts.supports(spec, facts)
    return attention.supports(spec.attention, facts) if verdict.accepted else verdict


class RelativeAttention:
    """See `hotshoe.slots.RelativeAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
    """

    layout = LAYOUT
    kv_scales: Tensor | None = None
    prepare = staticmethod(whole_step)

    def __init__(
        self, spec: RelativeAttentionSpec, facts: DeviceFacts, tiling: Tiling | None = None
    ) -> None:
        from hotshoe_triton.kernels.relative import relative_attention
        from hotshoe_triton.kernels.trees import join_pieces

        own = self._spec = spec.attention
        self._kernel, self._join_kernel = relative_attention, join_pieces
        self._group, self._width = own.num_heads // own.num_kv_heads, own.num_heads * own.head_dim
        self._tokens = max(1, LOGITS_BYTES // (4 * own.num_heads * spec.extent))
        shared = {
            "NUM_HEADS": own.num_heads,
            "HEAD_DIM": own.head_dim,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(own.head_dim)),
        } | chaining(facts)
        self._joining = shared
        reading = {
            "GROUP": self._group,
            "HEAD_STRIDE": own.head_dim + spec.states,
            "BLOCK_SIZE": own.block_size,
            "SCALE": own.scale,
            "WINDOW": own.window or 0,
            "EXTENT": spec.extent,
        }
        reading |= shared | kv.constants(own)
        tiles = tiling or self._tiling(facts)
        self._prompts = reading | self._rows(tiles, ROWS)
        self._decodes = reading | self._rows(tiles, MIN_ROWS)
        self._programs = facts.compute_units * tiles.programs_per_unit // own.num_kv_heads
        self._keys, self._least = tiles.keys, -(-tiles.share // tiles.keys)

    def _tiling(self, facts: DeviceFacts) -> Tiling:
        return tiling((PREFILL, NARROW_PREFILL), self._spec, arch_of(facts))

    def _rows(self, tiles: Tiling, most: int) -> dict[str, Any]:
        """Return a kernel's constants, for tiles of up to so many rows."""
        rows = max(min(tiles.rows, most), next_power_of_2(self._group))
        few = {"num_warps": 4} if rows < tiles.rows and self._spec.head_dim <= 128 else {}
        return prefilling(tiles, self._group) | {"BLOCK_M": rows} | few

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, profiles: Tensor
    ) -> Tensor:
        out = torch.empty((q.size(0), self._width), dtype=q.dtype, device=q.device)
        if prepared.num_reqs:
            planes = kv.planes(cache, self._spec, self.kv_scales)
            for own, step in slices(prepared, self._tokens):
                states = q[own, :, self._spec.head_dim :].float()
                self._attend(out[own], q[own], planes, step, states @ profiles)
        return out

    def _attend(
        self, out: Tensor, q: Tensor, planes: kv.Planes, step: AttentionMetadata, logits: Tensor
    ) -> None:
        """Compute a slice, given [tokens, num_heads, extent] logits."""
        tokens, heads, dim = q.size(0), self._spec.num_heads, self._spec.head_dim
        reading = self._decodes if step.max_query_len == 1 else self._prompts
        tiles = tokens // (reading["BLOCK_M"] // self._group) + step.num_reqs
        most = -(-step.max_seq_len // (self._keys * self._least))
        pieces = max(1, min(self._programs // tiles, most))
        held = pieces * tokens * heads if pieces > 1 else 0
        scratch = torch.empty(held * (dim + 2) + 1, dtype=torch.float32, device=q.device)
        found = scratch, scratch[held * dim :]
        self._kernel[(self._spec.num_kv_heads, tiles, pieces)](
            out,
            q,
            *planes.tensors,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            logits,
            *found,
            step.num_reqs,
            self._least,
            q.stride(0),
            step.block_table.stride(0),
            planes.stride,
            **reading,
        )
        if pieces > 1:
            size = (step.query_start_loc, step.num_reqs, pieces)
            self._join_kernel[(tokens, heads)](
                out, *found, *size, BLOCK_P=JOINED[pieces > JOINED[0]], **self._joining
            )
