"""Candidate `native` of slot `rg_lru`: a recurrent block between its projections in C++."""

from __future__ import annotations

from hotshoe.platform import DeviceFacts
from hotshoe.slots import RgLruSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StateBlock, judge_states

#: The order in which the kernel takes them.
WEIGHTS = ("conv", "conv_bias", "gates", "gate_bias", "rate")


def supports(spec: RgLruSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    heads, inner = spec.num_heads, spec.inner_size
    uneven = heads < 1 or inner % heads != 0
    return judge_states(spec, facts, {f"{heads} heads do not divide {inner} channels": uneven})


class RgLru(StateBlock):
    """See `hotshoe.slots.RgLruOp`."""

    def __init__(self, spec: RgLruSpec, facts: DeviceFacts) -> None:
        numbers = (
            spec.inner_size,
            spec.num_heads,
            spec.conv_width,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            DTYPE_CODES[spec.dtype],
        )
        super().__init__(kernels(facts).rg_lru, spec, WEIGHTS, numbers)
