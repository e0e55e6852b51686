"""Candidate of slot `compressed_attention`: one launch rotates and writes, one reads window and
entries of every token, one takes the rotation back."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, CompressedAttentionSpec, Verdict, whole_step
from hotshoe.slots.reference import accepts
from hotshoe_triton import latent
from hotshoe_triton.attention import FLOAT32, MIN_ROWS, Tiling, request_block
from hotshoe_triton.compress import HEADS, REQUESTS, rotate_heads, turning
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.kv import row_refusals

#: Channels that one program holds of a row.
MAX_HEAD_DIM = 512
#: Most parts into which the rows of a token are divided.
PARTS = 16


def supports(spec: CompressedAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    known = accepts.supports(spec, facts)
    if not known.accepted:
        return known
    size = spec.block_size
    return judge(
        facts,
        spec.dtype,
        {
            **row_refusals(spec.row, facts),
            f"head_dim {spec.head_dim} is above {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
            f"head_dim {spec.head_dim} is odd": bool(spec.head_dim % 2),
            f"block_size {size} is not a power of two": bool(size & (size - 1)),
            f"scale {spec.scale} is not positive": not spec.scale > 0,
        },
    )


class CompressedAttention:
    """See `hotshoe.slots.CompressedAttentionOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
    """

    prepare = staticmethod(whole_step)

    def __init__(
        self, spec: CompressedAttentionSpec, facts: DeviceFacts, tiling: Tiling | None = None
    ) -> None:
        from hotshoe_triton.kernels.compressed import compressed_attend, merge_back, rotate_back

        self._spec, self._back, self._merge = spec, rotate_back, merge_back
        self._units = facts.compute_units
        self._turning = turning(spec, facts)
        shipped = latent.TILINGS[arch_of(facts).family][0]
        tiling = tiling or (FLOAT32 if spec.dtype == "float32" else shipped)
        group = latent.heads_of_program(spec.num_heads, tiling.rows)
        self._kernel, self._groups = compressed_attend, spec.num_heads // group
        self._constants = {
            "NUM_HEADS": spec.num_heads,
            "GROUP": group,
            "HEAD_DIM": spec.head_dim,
            "WINDOW": spec.window,
            "TOKENS": spec.group or 0,
            "TOP_K": spec.top_k or 0,
            "BLOCK_SIZE": spec.block_size,
            "SCALE": spec.scale,
            "BLOCK_M": max(MIN_ROWS, next_power_of_2(group)),
            "BLOCK_N": tiling.keys,
            "BLOCK_D": max(MIN_ROWS, next_power_of_2(spec.head_dim)),
            "num_warps": tiling.warps,
            "num_stages": tiling.stages,
        } | chaining(facts)
        self._merging = {
            "NUM_HEADS": spec.num_heads,
            "HEAD_DIM": spec.head_dim,
            "ROPE_DIM": spec.rope_dim,
            "BLOCK_S": PARTS,
            "BLOCK_D": self._constants["BLOCK_D"],
            "BLOCK_R": REQUESTS,
        } | chaining(facts)

    def write(
        self,
        q: Tensor,
        row: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        stored = row, cache, slot_mapping
        return rotate_heads(self._spec, self._turning, q, positions, cos_sin, stored)

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        entries: tuple[Tensor, AttentionMetadata, Tensor | None] | None,
        sinks: Tensor,
        cos_sin: Tensor,
    ) -> Tensor:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not len(q):
            return out.flatten(1)
        held, step, chosen = (cache, prepared, None) if entries is None else entries
        table, own = prepared.block_table, step.block_table
        which = own if chosen is None else chosen
        parts = self._parts(len(q), step.max_seq_len)
        sums, notes = (out, sinks) if parts == 1 else self._scratch(q, parts)
        self._kernel[(self._groups, len(q), parts)](
            sums,
            q,
            cache,
            table,
            held,
            own,
            which,
            sinks,
            prepared.query_start_loc,
            prepared.seq_lens,
            notes,
            prepared.num_reqs,
            q.stride(0),
            table.stride(0),
            cache.stride(0),
            own.stride(0),
            held.stride(0),
            which.stride(0),
            BLOCK_R=request_block(prepared.num_reqs),
            SPLIT=parts > 1,
            **self._constants,
        )
        requests = prepared.query_start_loc, prepared.seq_lens, prepared.num_reqs
        if parts > 1:
            rows = len(q), self._spec.num_heads
            self._merge[rows](out, sums, notes, cos_sin, *requests, parts, **self._merging)
            return out.flatten(1)
        self._back[(len(q), -(-self._spec.num_heads // HEADS))](
            out,
            cos_sin,
            *requests,
            NUM_HEADS=self._spec.num_heads,
            BLOCK_R=REQUESTS,
            **self._turning,
        )
        return out.flatten(1)

    def _parts(self, tokens: int, max_seq_len: int) -> int:
        """Return how many programs divide the rows of a token, so that few tokens fill a device."""
        spec, rows = self._spec, int(self._constants["BLOCK_N"])
        entries = 0 if spec.group is None else max_seq_len // spec.group
        entries = entries if spec.top_k is None else min(entries, spec.top_k)
        tiles = -(-min(spec.window, max_seq_len) // rows) - (-entries // rows)
        return max(1, min(tiles, PARTS, self._units // (self._groups * tokens)))

    def _scratch(self, q: Tensor, parts: int) -> tuple[Tensor, Tensor]:
        """Return memory for sums and notes of all parts."""
        rows, dim = parts * len(q) * self._spec.num_heads, self._spec.head_dim
        memory = torch.empty(rows * (dim + 2), dtype=torch.float32, device=q.device)
        return memory[: rows * dim], memory[rows * dim :]
