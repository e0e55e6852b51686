"""Candidate of slot `gated_delta`: a convolution, then the recurrence.

Few tokens go one by one: a program holds a head's state in registers, so that decoding reads and
writes each state once. Many go chunk by chunk, by matrix products. A sequence's own tokens of the
step alone decide, so that no other sequence changes its results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    GatedDeltaSpec,
    GatedDeltaWeights,
    Verdict,
    whole_step,
)
from hotshoe_triton.attention import MIN_ROWS
from hotshoe_triton.device import KIB, arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.states import PARTS, Convolution, state_parts

#: Entries of a head's state; more do not fit into registers.
MAX_ENTRIES = 32768
#: Entries of a state for each warp.
WARP_ENTRIES = 2048
#: With fewer registers a thread, more warps read slower (measured on an H100).
MOST_WARPS = 4
#: Most tokens of a sequence that go one by one.
FEW = 16
#: Entries of a state that a program takes from chunk to chunk, and its threads.
CARRIED, CARRY_THREADS = 2048, 128
#: Threads of a program that solves a chunk (measured on an H200, as what is carried).
SOLVE_THREADS = 64


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


def tokens_of_chunk(spec: GatedDeltaSpec, facts: DeviceFacts) -> int:
    """Return how many tokens a chunk has: as many as registers hold.

    With a decay for each channel, pairs of tokens are no matrix products and cost more. A state
    that is kept behind a block ends a chunk.
    """
    room = spec.key_dim <= 128 and PARTS[spec.dtype] == 1 and arch_of(facts).family != "rdna"
    small = spec.checkpoints == "all" and spec.block_size <= 16
    return 32 if room and spec.decay == "head" and not small else 16


class GatedDelta:
    """See `hotshoe.slots.GatedDeltaOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts, warps: int | None = None) -> None:
        from hotshoe_triton.kernels.gated_delta import gated_delta

        self._spec, self._kernel = spec, gated_delta
        self._convolve = Convolution(spec, facts)
        self._chunks = Chunks(spec, facts)
        block_k, block_v = next_power_of_2(spec.key_dim), next_power_of_2(spec.value_dim)
        self._constants = _shape(spec) | _kept(spec) | chaining(facts)
        self._constants |= {
            "CHANNELS": spec.decay == "channel",
            "SILU": spec.gate == "silu",
            "EPS": spec.norm_eps,
            "BLOCK_K": block_k,
            "BLOCK_V": block_v,
            "num_warps": warps or min(MOST_WARPS, max(1, block_k * block_v // WARP_ENTRIES)),
        }

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
        if step.max_query_len > FEW:
            self._chunks(out, mixed, gates, cache[1], step, weights)
            if step.num_reqs == 1:
                return out
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


class Chunks:
    """Takes the tokens of sequences with more than a few, chunk by chunk."""

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import delta_chunks

        self._kernels, self._spec = delta_chunks, spec
        parts, carried = PARTS[spec.dtype], state_parts(spec.dtype)
        # Numbers are kept as they are multiplied.
        self._parts, self._carried_parts = max(1, parts), max(1, carried)
        self._type = torch.bfloat16 if parts else torch.float32
        channels = spec.decay == "channel"
        self._length = tokens_of_chunk(spec, facts)
        span = spec.block_size if spec.checkpoints == "all" else self._length
        self._unit = span // -(-span // self._length)
        self._decays = spec.key_dim if channels else 1
        block_k, block_v = (
            max(MIN_ROWS, next_power_of_2(size)) for size in (spec.key_dim, spec.value_dim)
        )
        shared: dict[str, Any] = _shape(spec) | chaining(facts)
        shared |= {"SPAN": span, "BLOCK_L": self._length, "BLOCK_V": block_v}
        self._norm = shared | {"SILU": spec.gate == "silu", "EPS": spec.norm_eps}
        shared |= {"CHANNELS": channels, "PARTS": parts, "STATE_PARTS": carried, "BLOCK_K": block_k}
        arch = arch_of(facts)
        self._solve = shared | {"num_warps": SOLVE_THREADS // arch.warp_size}
        self._carry = shared | _kept(spec) | {"num_warps": CARRY_THREADS // arch.warp_size}
        self._carry["BLOCK_V"] = max(MIN_ROWS, min(block_v, CARRIED // block_k))
        # Small chunks leave room to load the next one meanwhile.
        self._carry["num_stages"] = 3 if channels and arch.shared_bytes > 100 * KIB else 1

    def __call__(
        self,
        out: Tensor,
        mixed: Tensor,
        gates: Tensor,
        cache: Tensor,
        step: AttentionMetadata,
        weights: GatedDeltaWeights,
    ) -> None:
        spec, tokens, rows = self._spec, len(out), step.num_reqs
        places = tokens // self._unit + self._kernels.SPARE.value * rows

        def room(parts: int, columns: int) -> Tensor:
            return mixed.new_empty((parts, spec.num_heads, tokens, columns), dtype=self._type)

        w, k = (room(self._carried_parts, spec.key_dim) for _ in "wk")
        q, scores = (room(self._parts, size) for size in (spec.key_dim, self._length))
        decay = mixed.new_empty((places, spec.num_heads, self._decays))
        between = (w, q, k, scores, decay)
        lengths = (step.query_start_loc, step.seq_lens)
        grid, kernels = (places, spec.num_heads), self._kernels
        kernels.solve_chunks[grid](
            mixed, gates, *between, weights.a, weights.dt_bias, *lengths, rows, tokens,
            gates.stride(0), **self._solve,
        )  # fmt: skip
        parts = -(-spec.value_dim // self._carry["BLOCK_V"])
        kernels.carry_chunks[(rows, spec.num_heads, parts)](
            mixed, *between, cache, step.block_table, *lengths, tokens, cache.stride(0),
            step.block_table.stride(0), **self._carry,
        )  # fmt: skip
        kernels.norm_chunks[grid](
            out, mixed, gates, weights.norm, *lengths, rows, gates.stride(0), **self._norm
        )


def _shape(spec: GatedDeltaSpec) -> dict[str, Any]:
    """Return the constants of all kernels."""
    return {
        "HEADS": spec.num_heads,
        "KEY_HEADS": spec.num_key_heads,
        "K": spec.key_dim,
        "V": spec.value_dim,
        "FEW": FEW,
    }


def _kept(spec: GatedDeltaSpec) -> dict[str, Any]:
    """Return the constants of kernels that keep states."""
    return {
        "BLOCK_SIZE": spec.block_size,
        "SINGLE": spec.checkpoints == "none",
        "ALL": spec.checkpoints == "all",
    }
