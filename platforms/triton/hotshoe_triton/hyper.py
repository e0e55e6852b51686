"""Candidate of slot `hyper_connection`: two launches for all that lies between two blocks."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import HyperConnectionSpec, Verdict
from hotshoe.slots.reference import accepts
from hotshoe_triton.attention import MIN_ROWS
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2

#: Streams that kernels are unrolled for.
MOST_STREAMS = 8
#: Tokens of a program: up to MANY tokens, and beyond, where each reads the matrix less often.
TOKENS = (16, 32)
MANY = 128
#: Channels of a stream that a program multiplies at once, likewise, and those that it adds up.
CHANNELS, ADDED = (64, 32), 512
#: Parts of sums that are read at once, likewise.
PARTS = (128, 16)
#: Programs of a unit, which hide each other's waiting, likewise.
PROGRAMS = (4, 8)


def supports(spec: HyperConnectionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    known, most = accepts.supports(spec, facts), MOST_STREAMS
    if not known.accepted:
        return known
    reasons = {
        f"{spec.count} streams are above {most}": spec.count > most,
        "streams that do not mix": not spec.mixes,
        f"a magnitude of {spec.magnitude}, not 2": spec.magnitude != 2.0,
    }
    return judge(facts, spec.dtype, reasons)


class HyperConnection:
    """See `hotshoe.slots.HyperConnectionOp`."""

    def __init__(self, spec: HyperConnectionSpec, facts: DeviceFacts) -> None:
        from hotshoe_triton.kernels.hyper import gate_and_sum, join_and_project

        self._spec, self._units = spec, facts.compute_units
        self._project, self._gate = join_and_project, gate_and_sum
        self._width = max(MIN_ROWS, next_power_of_2(spec.outputs + 1))
        #: Products of float32 are made of three in 19 bits where there are units for those.
        exact = "tf32x3" if arch_of(facts).backend == "cuda" else "ieee"
        common = {
            "COUNT": spec.count,
            "HIDDEN": spec.hidden_size,
            "OUTPUTS": spec.outputs,
            "WIDTH": self._width,
        } | chaining(facts)
        self._projecting = {
            "PRECISION": exact,
            "num_warps": 4,
            "num_stages": 2,
        } | common
        self._block_h = min(ADDED, next_power_of_2(spec.hidden_size))
        self._gating = {
            "ITERATIONS": spec.iterations,
            "EPS": spec.eps,
            "NORM_EPS": spec.norm_eps,
            "BLOCK_C": next_power_of_2(spec.count),
            "BLOCK_H": self._block_h,
            "num_warps": 1,
        } | common

    def __call__(
        self,
        streams: Tensor,
        block: tuple[Tensor, Tensor] | None,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec, tokens = self._spec, len(streams)
        taken = streams.new_empty((tokens, spec.hidden_size))
        made = fn.new_empty((tokens, spec.gates))
        joined = streams if block is None else streams.new_empty(streams.shape)
        if not tokens:
            return joined, taken, made
        many = tokens > MANY
        tiles = -(-tokens // TOKENS[many])
        per = self._per(PROGRAMS[many] * self._units // tiles, CHANNELS[many])
        splits = -(-spec.hidden_size // per)
        partial = fn.new_empty((splits * spec.count, tokens, self._width))
        out, gates = (streams, fn) if block is None else block
        self._project[(tiles, splits, spec.count)](
            joined,
            partial,
            streams,
            out,
            gates,
            fn,
            tokens,
            per,
            streams.stride(0),
            streams.stride(1),
            out.stride(0),
            JOINED=block is not None,
            BLOCK_T=TOKENS[many],
            BLOCK_H=CHANNELS[many],
            **self._projecting,
        )
        self._gate[(tokens, -(-spec.hidden_size // self._block_h) + (not spec.ends))](
            taken,
            made,
            partial,
            joined,
            base,
            scale,
            tokens,
            len(partial),
            joined.stride(0),
            joined.stride(1),
            BLOCK_S=PARTS[many],
            **self._gating,
        )
        return joined, taken, made

    def _per(self, programs: int, block: int) -> int:
        """Return the channels of a split, whole blocks, for so many programs of a tile."""
        splits = max(1, programs // self._spec.count)
        return -(-self._spec.hidden_size // splits // block) * block
