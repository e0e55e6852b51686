"""Candidate of slot `sparse_mla_attention`: the absorbed form, over rows that each query gathers.

Everything but the gathering is as in `latent.py`. A row that one query chose serves no other, so
prompts and decoding take the same kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    LatentAdapters,
    SparseMlaSpec,
    Verdict,
    whole_step,
)
from hotshoe_triton import latent
from hotshoe_triton.attention import (
    FLOAT32,
    MIN_ROWS,
    Tiling,
    decoding,
    request_block,
    zeroed,
)
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.kv import row_constants, row_views

#: Chosen rows below which sharing them costs more than it gains.
SHARE = 128


def supports(spec: SparseMlaSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types, as `latent.py` does."""
    known = latent.supports(spec.attention, facts)
    if not known.accepted:
        return known
    return judge(facts, spec.dtype, {"sinks beside chosen tokens": spec.sinks})


class SparseMlaAttention:
    """See `hotshoe.slots.SparseMlaOp`.

    Args:
        spec: The slot's specification.
        facts: The device.
        tiling: To use instead of the shipped one.
        share: To use instead of `SHARE`.
    """

    prepare = staticmethod(whole_step)

    def __init__(
        self,
        spec: SparseMlaSpec,
        facts: DeviceFacts,
        tiling: Tiling | None = None,
        share: int = SHARE,
    ) -> None:
        from hotshoe_triton.kernels.sparse import sparse_attend

        own = spec.attention
        self._dense = latent.MlaAttention(own, facts)
        self.load, self.state = self._dense.load, self._dense.state
        self.nbytes, self.write = self._dense.nbytes, self._dense.write
        self._kernel, self._spec, self._units = sparse_attend, spec, facts.compute_units
        shipped = latent.TILINGS[arch_of(facts).family][0]
        tiling = tiling or (FLOAT32 if own.dtype == "float32" else shipped)
        group = latent.heads_of_program(own.num_heads, tiling.rows)
        self._groups = own.num_heads // group
        block_l = max(MIN_ROWS, next_power_of_2(own.latent_dim))
        tile = decoding(tiling, group, block_l)
        del tile["MIN_TILES"]
        self._least = max(1, share // tiling.keys) * tiling.keys
        self._keys = tiling.keys
        self._constants = {
            "NUM_HEADS": own.num_heads,
            "GROUP": group,
            "LATENT": own.latent_dim,
            "NOPE": own.nope_dim,
            "TURNED": own.rope_dim,
            "BLOCK_SIZE": own.block_size,
            "SCALE": own.scale,
            "TOP_K": spec.top_k,
            "BLOCK_L": block_l,
            "BLOCK_T": max(MIN_ROWS, next_power_of_2(own.rope_dim)),
        } | tile
        self._constants |= row_constants(own.row) | chaining(facts)
        self._counters: list[Tensor] = []

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        chosen: Tensor,
        adapters: LatentAdapters | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        dense, step, tokens = self._dense, prepared, len(q)
        if not tokens:
            return q.new_empty((0, self._spec.attention.num_heads * self._spec.attention.v_dim))
        wide = dense.widened(q, adapters)
        mixed, table = torch.empty_like(wide), step.block_table
        rows = row_views(cache, self._spec.attention.row)
        pieces, share = self._shares(tokens, min(self._spec.top_k, step.max_seq_len))
        width = self._spec.attention.latent_dim
        held = 2 * tokens * pieces * self._spec.attention.num_heads if pieces > 1 else 0
        scratch = torch.empty(held * (width + 2) + 1, dtype=torch.float32, device=q.device)
        self._kernel[(self._groups, tokens, pieces)](
            mixed,
            wide,
            q,
            *rows,
            chosen,
            table,
            step.query_start_loc,
            step.seq_lens,
            scratch,
            scratch[held * width :],
            zeroed(self._counters, max(self._units, self._groups), q.device),
            step.num_reqs,
            share,
            q.stride(0),
            table.stride(0),
            rows[0].stride(0),
            rows[1].stride(0),
            BLOCK_R=request_block(step.num_reqs),
            **self._constants,
        )
        return dense.values(mixed, adapters)

    def _shares(self, tokens: int, columns: int) -> tuple[int, int]:
        """Return among how many programs the chosen rows of each token go, and how many to each."""
        programs = max(1, self._units // (tokens * self._groups))
        share = max(self._least, -(-columns // programs))
        share = -(-share // self._keys) * self._keys
        return -(-columns // share), share
