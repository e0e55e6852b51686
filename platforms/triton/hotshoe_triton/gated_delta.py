"""Candidate of slot `gated_delta`: a convolution, then the recurrence.

Few tokens go one by one: a program holds a head's state in registers, so that decoding reads and
writes each state once. Many go chunk by chunk, by matrix products. A sequence's own tokens of the
step alone decide, so that no other sequence changes its results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
from hotshoe_triton.beside import Beside
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
#: Most tokens of a chunk by family, 32 where nothing is said.
MOST_TOKENS = {"rdna": 16, "hopper": 64}
#: Rows of a state that a program carries, where bfloat16 is multiplied. A Hopper's matrix units
#: take as many from registers. Others carry so many entries.
CARRIED_ROWS, CARRIED = {"hopper": 64}, 2048
#: Threads of a program that convolves, solves, carries or norms (measured on an H100).
CONVOLVE_THREADS, CARRY_THREADS, NORM_THREADS = 256, 128, 256
#: By whether a chunk has more than 32 tokens; with a decay for each channel.
SOLVE_THREADS, CHANNEL_THREADS = (64, 128), 128
#: Registers of a thread that solves, where three programs then share a multiprocessor.
SOLVE_REGISTERS = {"hopper": 168}
#: Channels of which a program that solves has all numbers at once, if each has its own decay; by
#: family, 32 where nothing is said.
CHANNELS_AT_ONCE = {"hopper": 64}
#: Tokens of a part, whose states are carried while the next one is solved (measured on an H200).
PART_TOKENS = {"hopper": 2048}


def supports(spec: GatedDeltaSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    entries = next_power_of_2(spec.key_dim) * next_power_of_2(spec.value_dim)
    floor = spec.decay_floor
    return judge(
        facts,
        spec.dtype,
        {
            f"states of {spec.value_dim} x {spec.key_dim} exceed registers": entries > MAX_ENTRIES,
            f"decay_floor {floor} is not below 0": floor is not None and not floor < 0,
        },
    )


def tokens_of_chunk(spec: GatedDeltaSpec, facts: DeviceFacts) -> int:
    """Return how many tokens a chunk has: as many as registers hold.

    With a decay for each channel there is more to hold. A state that is kept behind a block ends a
    chunk.
    """
    room = spec.key_dim <= 128 and PARTS[spec.dtype] == 1
    most = MOST_TOKENS.get(arch_of(facts).family, 32) if room else 16
    most = min(most, 32) if spec.decay == "channel" else most
    kept = spec.block_size if spec.checkpoints == "all" else most
    return min(most, max(16, next_power_of_2(kept)))


@dataclass(frozen=True, slots=True)
class Made:
    """What the kernels of `Chunks` hand on; `kernels.delta_chunks` says what each is."""

    k: Tensor
    q: Tensor
    since_k: Tensor
    until_k: Tensor
    since_q: Tensor
    solved: Tensor
    scores: Tensor
    v: Tensor
    faded: Tensor
    decay: Tensor


class Chunks:
    """Takes the tokens of sequences with more than a few, chunk by chunk."""

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels import delta_chunks

        self._kernels, self._spec = delta_chunks, spec
        parts, carried = PARTS[spec.dtype], state_parts(spec.dtype)
        # Numbers are kept as they are multiplied.
        self._parts, self._carried_parts = max(1, parts), max(1, carried)
        self._type = torch.bfloat16 if parts else torch.float32
        self._channels = spec.decay == "channel"
        self._length = tokens_of_chunk(spec, facts)
        span = spec.block_size if spec.checkpoints == "all" else self._length
        self._unit = span // -(-span // self._length)
        block_k, block_v = (
            max(MIN_ROWS, next_power_of_2(size)) for size in (spec.key_dim, spec.value_dim)
        )
        arch, keeps, self._beside = arch_of(facts), _kept(spec), Beside(facts)
        shared: dict[str, Any] = {"HEADS": spec.num_heads, "V": spec.value_dim, "FEW": FEW}
        shared |= {"SPAN": span, "BLOCK_L": self._length} | chaining(facts)
        self._norm = shared | {"SILU": spec.gate == "silu", "EPS": spec.norm_eps}
        self._norm |= {"BLOCK_V": block_v, "num_warps": NORM_THREADS // arch.warp_size}
        shared |= {"KEY_HEADS": spec.num_key_heads, "K": spec.key_dim}
        shared |= {"PARTS": parts, "STATE_PARTS": carried}
        self._convolve = shared | {"WIDTH": spec.conv_width, "BLOCK_C": max(block_k, block_v)}
        self._convolve |= {"num_warps": CONVOLVE_THREADS // arch.warp_size}
        self._convolve |= {name: keeps[name] for name in ("BLOCK_SIZE", "SINGLE")}
        shared |= {"CHANNELS": self._channels, "BLOCK_K": block_k}
        threads = CHANNEL_THREADS if self._channels else SOLVE_THREADS[self._length > 32]
        self._solve = shared | {"num_warps": threads // arch.warp_size, "num_stages": 1}
        self._solve |= {"LEVELS": self._length.bit_length() - 1} | _made_of(spec)
        if self._channels:
            self._solve["BLOCK_K"] = min(block_k, CHANNELS_AT_ONCE.get(arch.family, 32))
        elif parts == 1 and arch.family in SOLVE_REGISTERS:
            self._solve["maxnreg"] = SOLVE_REGISTERS[arch.family]
        few = max(MIN_ROWS, CARRIED // block_k)
        rows = CARRIED_ROWS.get(arch.family, few) if parts == 1 else few
        self._carry = shared | keeps | {"BLOCK_V": min(block_v, rows)}
        self._carry["num_warps"] = CARRY_THREADS // arch.warp_size
        ahead = self._channels or rows > few
        self._carry["num_stages"] = 2 if ahead and arch.shared_bytes > 100 * KIB else 1
        self._carriers = spec.num_heads * -(-spec.value_dim // self._carry["BLOCK_V"])
        # Where most multiprocessors carry, there is no room for others. A state between two parts
        # lies in the cache, whose type may round it.
        room = 2 * self._carriers <= facts.compute_units and spec.state_dtype == "float32"
        self._part = PART_TOKENS.get(arch.family, 0) if room else 0

    def __call__(
        self,
        out: Tensor,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        step: AttentionMetadata,
        weights: GatedDeltaWeights,
    ) -> None:
        tokens, rows = len(out), step.num_reqs
        places = tokens // self._unit + self._kernels.SPARE.value * rows
        made = self._made(tokens, places, out.device)
        # Results of float16 fit its range once they are normed.
        y = torch.empty_like(out, dtype=torch.float32) if out.dtype is torch.float16 else out
        take, ends = self._taking(y, made, cache[1], step), []
        parts = self._parts_of(places, tokens, step)
        for low, above in parts:
            self._solve_part(low, above, projected, cache[0], made, step, weights)
            launch = partial(take, low, above)
            ends.append(self._beside(launch) if len(parts) > 1 else launch)
        gates = projected[:, self._spec.conv_size :]
        for end, (low, above) in zip(ends, parts, strict=True):
            end()
            self._kernels.norm_chunks[(above - low, self._spec.num_heads)](
                out, y, gates, weights.norm, step.query_start_loc, step.seq_lens, rows, low,
                gates.stride(0), **self._norm,
            )  # fmt: skip

    def _parts_of(self, places: int, tokens: int, step: AttentionMetadata) -> list[tuple[int, int]]:
        """Return the places of each part, which change no result.

        A sequence that has most tokens leaves most of a device idle while its state is carried.
        """
        alone = self._part and 2 * step.max_query_len > tokens
        count = max(1, tokens // self._part) if alone else 1
        bounds = [places * part // count for part in range(count + 1)]
        return list(pairwise(bounds))

    def _solve_part(
        self,
        low: int,
        above: int,
        projected: Tensor,
        inputs: Tensor,
        made: Made,
        step: AttentionMetadata,
        weights: GatedDeltaWeights,
    ) -> None:
        """Convolve the chunks of some places, and compute what needs no state."""
        spec, kernels, tokens = self._spec, self._kernels, len(projected)
        gates, table = projected[:, spec.conv_size :], step.block_table
        lengths = step.query_start_loc, step.seq_lens, step.num_reqs, low, tokens
        kernels.convolve_chunks[(above - low, 2 * spec.num_key_heads + spec.num_heads)](
            projected, inputs, weights.conv, made.k, made.q, made.v, table, *lengths,
            projected.stride(0), inputs.stride(0), table.stride(0), **self._convolve,
        )  # fmt: skip
        kernels.solve_chunks[(above - low, spec.num_heads)](
            gates, made.k, made.q, made.since_k, made.until_k, made.since_q, made.solved,
            made.scores, made.faded, made.decay, weights.a, weights.dt_bias, *lengths,
            gates.stride(0), **self._solve,
        )  # fmt: skip

    def _made(self, tokens: int, places: int, device: torch.device) -> Made:
        """Return memory for what kernels hand on."""
        spec, heads, key_heads = self._spec, self._spec.num_heads, self._spec.num_key_heads

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        def parts(of: int, *shape: int) -> Tensor:
            return room(of, *shape, dtype=self._type)

        few, more = self._parts, self._carried_parts
        k, q = (parts(of, key_heads, tokens, spec.key_dim) for of in (more, few))
        since_k, until_k, since_q = k, k, q
        if self._channels:
            shape = heads, tokens, spec.key_dim
            since_k, until_k, since_q = (parts(of, *shape) for of in (more, more, few))
        solved, scores = (parts(of, heads, tokens, self._length) for of in (more, few))
        v, faded = room(tokens, spec.inner_size), room(2, heads, tokens)
        decay = room(places, heads, spec.key_dim if self._channels else 1)
        return Made(k, q, since_k, until_k, since_q, solved, scores, v, faded, decay)

    def _taking(
        self, y: Tensor, made: Made, cache: Tensor, step: AttentionMetadata
    ) -> Callable[[int, int], None]:
        """Return a call that takes states through the chunks of some places."""
        heads, table = self._spec.num_heads, step.block_table
        kernel = self._kernels.carry_chunks[(step.num_reqs, heads, self._carriers // heads)]

        def take(low: int, above: int) -> None:
            kernel(
                y, made.v, made.since_k, made.until_k, made.since_q, made.solved, made.scores,
                made.faded, made.decay, cache, table, step.query_start_loc, step.seq_lens, low,
                above, len(y), cache.stride(0), table.stride(0), **self._carry,
            )  # fmt: skip

        return take


class GatedDelta:
    """See `hotshoe.slots.GatedDeltaOp`. A platform may take chunks in its own way."""

    prepare = staticmethod(whole_step)
    chunks = Chunks

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts, warps: int | None = None) -> None:
        from hotshoe_triton.kernels.gated_delta import gated_delta

        self._spec, self._kernel = spec, gated_delta
        self._convolve = Convolution(spec, facts)
        self._chunks = self.chunks(spec, facts)
        block_k, block_v = next_power_of_2(spec.key_dim), next_power_of_2(spec.value_dim)
        self._constants: dict[str, Any] = _kept(spec) | _made_of(spec) | chaining(facts)
        self._constants |= {
            "HEADS": spec.num_heads,
            "V": spec.value_dim,
            "FEW": FEW,
            "KEY_HEADS": spec.num_key_heads,
            "K": spec.key_dim,
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
        gates = projected[:, spec.conv_size :]
        many = step.max_query_len > FEW
        if many:
            self._chunks(out, projected, cache, step, weights)
            self._convolve.keep(projected, cache[0], step, FEW)
            if step.num_reqs == 1:
                return out
        mixed = self._convolve(projected, cache[0], step, weights.conv, None, FEW * many)
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


def _made_of(spec: GatedDeltaSpec) -> dict[str, float]:
    """Return the constants that beta and decays are made with."""
    return {"BETA": spec.beta_scale, "FLOOR": spec.decay_floor or 0.0}


def _kept(spec: GatedDeltaSpec) -> dict[str, Any]:
    """Return the constants of kernels that keep states."""
    return {
        "BLOCK_SIZE": spec.block_size,
        "SINGLE": spec.checkpoints == "none",
        "ALL": spec.checkpoints == "all",
    }
