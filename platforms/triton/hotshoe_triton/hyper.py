"""Candidate of slot `hyper_connection`: two launches for all that lies between two blocks."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import HyperConnectionSpec, Verdict
from hotshoe_triton.attention import MIN_ROWS
from hotshoe_triton.device import arch_of, chaining, judge, next_power_of_2

#: Streams that kernels are unrolled for.
MOST_STREAMS = 8
#: Tokens of a program: up to MANY tokens, and beyond, where each reads the matrix less often.
TOKENS = (16, 32)
MANY = 256
#: Channels of a stream that a program multiplies at once; those that it adds up.
CHANNELS, ADDED = 32, 512
#: Splits whose sums are read at once.
SPLITS = 32


def supports(spec: HyperConnectionSpec, facts: DeviceFacts) -> Verdict:
    """Judge sizes and types."""
    most = MOST_STREAMS
    return judge(facts, spec.dtype, {f"{spec.count} streams are above {most}": spec.count > most})


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
            "BLOCK_H": CHANNELS,
            "num_warps": 4,
            "num_stages": 2,
        } | common
        self._block_h = min(ADDED, next_power_of_2(spec.hidden_size))
        self._gating = {
            "ITERATIONS": spec.iterations,
            "EPS": spec.eps,
            "NORM_EPS": spec.norm_eps,
            "BLOCK_C": next_power_of_2(spec.count),
            "BLOCK_S": SPLITS,
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
        tile = TOKENS[tokens > MANY]
        tiles = -(-tokens // tile)
        per = self._per(tiles)
        splits = -(-spec.hidden_size // per)
        partial = fn.new_empty((splits, tokens, self._width))
        out, gates = (streams, fn) if block is None else block
        self._project[(tiles, splits)](
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
            BLOCK_T=tile,
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
            splits,
            joined.stride(0),
            joined.stride(1),
            **self._gating,
        )
        return joined, taken, made

    def _per(self, tiles: int) -> int:
        """Return the channels of a split: so many that all units have work, twice."""
        splits = max(1, 2 * self._units // tiles)
        return -(-self._spec.hidden_size // splits // CHANNELS) * CHANNELS
