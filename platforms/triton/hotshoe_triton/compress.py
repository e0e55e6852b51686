"""Candidate of slot `compress`: one launch makes all entries that a step completes."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, CompressSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe_triton.device import chaining, judge, next_power_of_2

#: Channels of an entry, which one program holds.
MAX_HEAD_DIM = 512
#: Values that a program reads at once, besides as many gates.
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
    }
    return judge(facts, spec.dtype, reasons)


class Compress:
    """See `hotshoe.slots.CompressOp`."""

    def __init__(self, spec: CompressSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.compressed import compress

        width = next_power_of_2(spec.head_dim)
        self._kernel = compress
        self._constants = {
            "HEAD_DIM": spec.head_dim,
            "ROPE_DIM": spec.rope_dim,
            "GROUP": spec.group,
            "OVERLAP": int(spec.overlap),
            "BLOCK_SIZE": spec.block_size,
            "EPS": spec.norm_eps,
            "BLOCK_N": min(next_power_of_2(spec.reach), max(1, VALUES // width)),
            "BLOCK_D": width,
            "BLOCK_R": REQUESTS,
            "num_warps": 8 if width > 256 else 4,
        } | chaining(facts)

    def __call__(
        self,
        tokens: Tensor,
        entries: Tensor,
        steps: tuple[AttentionMetadata, AttentionMetadata],
        bias: Tensor,
        norm: Tensor,
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
