"""Candidate of slot `compress`: one launch makes all entries that a step completes, one writes
rows, one rotates the heads that are compared with entries."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, CompressedAttentionSpec, CompressSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe_triton.device import chaining, judge, next_power_of_2

#: Channels of an entry, which one program holds.
MAX_HEAD_DIM = 512
#: Heads that one program rotates.
HEADS = 16
#: Values that a program reads at once, besides as many gates; one with fewer has half of the warps.
#: Sums over tokens are between warps, so that few warps are faster.
VALUES = 8192
#: Requests among which a program looks for its own at once; for more of them it does so again.
REQUESTS = 256


def supports(spec: CompressSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    known = accepts.supports(spec, facts)
    if not known.accepted:
        return known
    reasons = {
        f"head_dim {spec.head_dim} is above {MAX_HEAD_DIM}": spec.head_dim > MAX_HEAD_DIM,
        f"head_dim {spec.head_dim} is odd": bool(spec.head_dim % 2),
        "entries that are not normed (norm_eps None)": spec.norm_eps is None,
    }
    return judge(facts, spec.dtype, reasons)


def turning(
    spec: CompressSpec | CompressedAttentionSpec, facts: DeviceFacts
) -> dict[str, int | bool]:
    """Return the constants by which heads are rotated."""
    return {
        "HEAD_DIM": spec.head_dim,
        "ROPE_DIM": spec.rope_dim,
        "BLOCK_M": HEADS,
        "BLOCK_P": next_power_of_2(max(1, spec.rope_dim // 2)),
        "num_warps": 1,
    } | chaining(facts)


def rotate_heads(
    spec: CompressSpec | CompressedAttentionSpec,
    constants: dict[str, int | bool],
    q: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    stored: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Rotate heads where they lie, and return them.

    Args:
        spec: What they are compared with.
        constants: Of `turning`.
        q: [num_tokens, num_heads, head_dim], dense heads.
        positions, cos_sin: See `hotshoe.slots.CompressOp.turn`.
        stored: Rows that are rotated alike, the cache where they go, and their slots.
    """
    from hotshoe_triton.kernels.compressed import rotate_and_store

    if not len(q):
        return q
    row, cache, slots = stored or (q, q, positions)
    heads = q.shape[1]
    grid = (len(q), -(-heads // HEADS) + (stored is not None))
    rotate_and_store[grid](
        q,
        row,
        cache,
        positions,
        cos_sin,
        slots,
        q.stride(0),
        row.stride(0),
        cache.stride(0),
        NUM_HEADS=heads,
        BLOCK_SIZE=spec.block_size,
        BLOCK_D=next_power_of_2(spec.head_dim),
        STORED=stored is not None,
        **constants,
    )
    return q


class Compress:
    """See `hotshoe.slots.CompressOp`."""

    def __init__(self, spec: CompressSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.compressed import compress, store_rows

        width, row = next_power_of_2(spec.head_dim), spec.token_row.width
        rows = min(next_power_of_2(spec.reach), max(1, VALUES // width))
        self._kernel, self._store, self._spec = compress, store_rows, spec
        self._storing = {
            "WIDTH": row,
            "BLOCK_SIZE": spec.block_size,
            "BLOCK_D": next_power_of_2(row),
        } | chaining(facts)
        self._turning = turning(spec, facts)
        self._constants = {
            "HEAD_DIM": spec.head_dim,
            "ROPE_DIM": spec.rope_dim,
            "GROUP": spec.group,
            "OVERLAP": int(spec.overlap),
            "BLOCK_SIZE": spec.block_size,
            "EPS": spec.norm_eps,
            "BLOCK_N": rows,
            "BLOCK_D": width,
            "BLOCK_R": REQUESTS,
            "num_warps": 4 if rows * width >= VALUES else 2,
        } | chaining(facts)

    def write(self, rows: Tensor, tokens: Tensor, slot_mapping: Tensor) -> None:
        if len(rows):
            strides = rows.stride(0), tokens.stride(0)
            self._store[(len(rows),)](rows, tokens, slot_mapping, *strides, **self._storing)

    def turn(self, q: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        return rotate_heads(self._spec, self._turning, q, positions, cos_sin)

    def __call__(
        self,
        tokens: Tensor,
        entries: Tensor,
        steps: tuple[AttentionMetadata, AttentionMetadata],
        bias: Tensor,
        norm: Tensor | None,
        cos_sin: Tensor,
    ) -> None:
        step, own = steps
        if not len(step.slot_mapping):
            return
        self._kernel[(len(step.slot_mapping),)](
            tokens,
            entries,
            step.block_table,
            own.block_table,
            step.query_start_loc,
            step.seq_lens,
            bias,
            norm,
            cos_sin,
            step.num_reqs,
            step.block_table.stride(0),
            tokens.stride(0),
            own.block_table.stride(0),
            entries.stride(0),
            **self._constants,
        )
