"""Candidate of slot `gated_delta`: a convolution, then the recurrence, token by token.

A program holds a head's state in registers, whether its sequence has one token or many. So decoding
reads and writes each state once, and a prompt reads none of it in between.
"""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    GatedDeltaSpec,
    GatedDeltaWeights,
    Verdict,
    whole_step,
)
from hotshoe_triton.device import chaining, judge, next_power_of_2
from hotshoe_triton.states import Convolution

#: Entries of a head's state; more do not fit into registers.
MAX_ENTRIES = 32768
#: Entries of a state for each warp.
WARP_ENTRIES = 2048
#: With fewer registers a thread, more warps read slower (measured on an H100).
MOST_WARPS = 4


def supports(spec: GatedDeltaSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    entries = next_power_of_2(spec.key_dim) * next_power_of_2(spec.value_dim)
    return judge(
        facts,
        spec.dtype,
        {
            f"states of {spec.value_dim} x {spec.key_dim} exceed registers": entries > MAX_ENTRIES,
        },
    )


class GatedDelta:
    """See `hotshoe.slots.GatedDeltaOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts, warps: int | None = None) -> None:
        from hotshoe_triton.kernels.gated_delta import gated_delta

        self._spec, self._kernel = spec, gated_delta
        self._convolve = Convolution(spec, facts)
        block_k, block_v = next_power_of_2(spec.key_dim), next_power_of_2(spec.value_dim)
        self._constants = {
            "HEADS": spec.num_heads,
            "KEY_HEADS": spec.num_key_heads,
            "K": spec.key_dim,
            "V": spec.value_dim,
            "CHANNELS": spec.decay == "channel",
            "SILU": spec.gate == "silu",
            "EPS": spec.norm_eps,
            "BLOCK_SIZE": spec.block_size,
            "SINGLE": spec.checkpoints == "none",
            "ALL": spec.checkpoints == "all",
            "BLOCK_K": block_k,
            "BLOCK_V": block_v,
            "num_warps": warps or min(MOST_WARPS, max(1, block_k * block_v // WARP_ENTRIES)),
        } | chaining(facts)

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        spec, step = self._spec, prepared
        out = projected.new_empty((len(projected), spec.inner_size))
        if not len(projected):
            return out
        mixed = self._convolve(projected, cache[0], step, weights.conv, None)
        gates = projected[:, spec.conv_size :]
        self._kernel[(step.num_reqs, spec.num_heads)](
            out,
            mixed,
            gates,
            cache[1],
            weights.a,
            weights.dt_bias,
            weights.norm,
            step.block_table,
            step.query_start_loc,
            step.seq_lens,
            gates.stride(0),
            cache[1].stride(0),
            step.block_table.stride(0),
            **self._constants,
        )
        return out
