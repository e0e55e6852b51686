"""Candidate of slot `state_space`: a convolution, then the scan with gate and norm.

Where every sequence has one token these are two launches, and each state is read and written once.
Sequences with several go chunk by chunk, each head in programs of its own, and a norm follows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    StateSpaceSpec,
    StateSpaceWeights,
    Verdict,
    whole_step,
)
from hotshoe_triton.attention import MIN_ROWS, REQUEST_BLOCKS, zeroed
from hotshoe_triton.device import KIB, arch_of, chaining, judge, next_power_of_2
from hotshoe_triton.states import PARTS, Convolution, state_parts

#: Behind the convolution, and on gates.
ACTIVATIONS = ("silu", "identity")
#: Entries of a channel's state; a tile of more does not fit into registers.
MAX_STATE_SIZE = 256
#: Entries of a head's state that a program takes.
ENTRIES = 4096
#: Most tokens of a chunk by family, 32 where nothing is said. A Hopper's matrix units take 64 rows,
#: so with 64 tokens a program takes as many channels (measured on an H200).
MOST_TOKENS = {"rdna": 16, "hopper": 64}
#: Threads of a program of a prompt, and chunks on their way where shared memory has room for them.
CHUNK_THREADS, CHUNK_STAGES = 128, 2
#: Channels of a part that one pass of the norm holds.
NORMED = 2048


def supports(spec: StateSpaceSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes, types and the parts that are normed."""
    parts = spec.inner_size // spec.norm_groups
    return judge(
        facts,
        spec.dtype,
        {
            f"activation {spec.activation} is not one of {', '.join(ACTIVATIONS)}": (
                spec.activation not in ACTIVATIONS
            ),
            f"norm {spec.norm} is not one of none, after, before": spec.norm
            not in ("none", "after", "before"),
            f"state_size {spec.state_size} is above {MAX_STATE_SIZE}": (
                spec.state_size > MAX_STATE_SIZE
            ),
            f"parts of {parts} channels, normed each on its own, cut heads of {spec.head_dim}": (
                spec.norm != "none" and parts % spec.head_dim != 0
            ),
        },
    )


def tokens_of_chunk(spec: StateSpaceSpec, facts: DeviceFacts) -> int:
    """Return how many tokens a chunk has: as many as registers hold."""
    most = MOST_TOKENS.get(arch_of(facts).family, 32) if PARTS[spec.dtype] == 1 else 16
    return most if spec.state_size <= 128 else max(16, most // 2)


class StateSpace:
    """See `hotshoe.slots.StateSpaceOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: StateSpaceSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import state_space

        self._kernels, self._spec = state_space, spec
        self._convolve = Convolution(spec, facts)
        self._chain = chaining(facts)
        part = spec.inner_size // spec.norm_groups
        self._norm = {
            "PART": part,
            "EPS": spec.norm_eps,
            "BEFORE": spec.norm == "before",
            "SILU": spec.activation == "silu",
            "BLOCK_C": min(NORMED, next_power_of_2(part)),
        } | self._chain
        shared: dict[str, Any] = {
            "HEADS": spec.num_heads,
            "GROUPS": spec.num_groups,
            "P": spec.head_dim,
            "N": spec.state_size,
            "DT": spec.inner_size + spec.conv_size,
            "LEAST": spec.dt_limits[0],
            "MOST": spec.dt_limits[1],
            "BLOCK_SIZE": spec.block_size,
            "SINGLE": spec.checkpoints == "none",
            "NORM": spec.norm != "none",
            "SILU": spec.activation == "silu",
            "num_warps": 4,
        }
        block_n = next_power_of_2(spec.state_size)
        channels = min(next_power_of_2(spec.head_dim), max(1, ENTRIES // block_n))
        self._step = shared | {"BLOCK_P": channels, "BLOCK_N": block_n} | self._norm
        block_n = max(MIN_ROWS, block_n)
        # Products of float32 keep more of their operands in registers.
        tokens = tokens_of_chunk(spec, facts)
        entries = ENTRIES if PARTS[spec.dtype] else ENTRIES // 2
        channels = min(next_power_of_2(spec.head_dim), max(entries // block_n, tokens // 64 * 64))
        self._chunks = shared | self._chain
        self._chunks |= {
            "ALL": spec.checkpoints == "all",
            "PARTS": PARTS[spec.dtype],
            "STATE_PARTS": state_parts(spec.dtype),
            "BLOCK_L": tokens,
            "BLOCK_P": max(MIN_ROWS, channels),
            "BLOCK_N": block_n,
            "num_warps": CHUNK_THREADS // arch_of(facts).warp_size,
            "num_stages": CHUNK_STAGES if arch_of(facts).shared_bytes > 100 * KIB else 1,
        }
        self._counters: list[Tensor] = []

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: StateSpaceWeights,
    ) -> Tensor:
        spec, step = self._spec, prepared
        out = projected.new_empty((len(projected), spec.inner_size))
        if not len(projected):
            return out
        inputs, several = projected[:, spec.inner_size :], step.max_query_len > 1
        factors = self._factors(len(out), out.device) if several else None
        mixed = self._convolve(inputs, cache[0], step, weights.conv, weights.conv_bias, 0, factors)
        norm = out if weights.norm is None else weights.norm
        y = out if weights.norm is None else torch.empty_like(out, dtype=torch.float32)
        tensors = projected, cache[1], weights.a, weights.d, weights.dt_bias
        lengths = (step.block_table, step.query_start_loc, step.seq_lens)
        strides = (projected.stride(0), cache[1].stride(0), step.block_table.stride(0))
        if factors is not None:
            self._kernels.scan_chunks[self._grid(step, self._chunks)](
                out, y, mixed, factors[0], *tensors, *lengths, len(out), *strides, **self._chunks
            )
        if step.num_reqs > 1 or not several:
            needed = max(step.num_reqs, REQUEST_BLOCKS[1]) * spec.norm_groups
            counters = zeroed(self._counters, needed, out.device)
            self._kernels.scan_step[self._grid(step, self._step)](
                out, y, mixed, *tensors, norm, *lengths, counters, *strides, **self._step
            )
        if several and weights.norm is not None:
            self._kernels.norm_tokens[(len(out), spec.norm_groups)](
                out, y, projected, norm, projected.stride(0), SIZE=spec.inner_size, **self._norm
            )
        return out

    def _factors(self, tokens: int, device: torch.device) -> tuple[Tensor, int]:
        """Return memory for B and C as they are multiplied, and how many numbers one has."""
        parts = self._chunks["STATE_PARTS"]
        shape = max(1, parts), tokens, 2 * self._spec.num_groups * self._spec.state_size
        dtype = torch.bfloat16 if parts else torch.float32
        return torch.empty(shape, dtype=dtype, device=device), parts

    def _grid(self, step: AttentionMetadata, constants: dict[str, Any]) -> tuple[int, int, int]:
        """Return a program for some channels of each head of each sequence."""
        spec = self._spec
        return step.num_reqs, spec.num_heads, -(-spec.head_dim // constants["BLOCK_P"])
