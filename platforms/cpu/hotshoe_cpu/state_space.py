"""Candidate `native` of slot `state_space`: convolution, scan, gate and norm in C++.

One token of a sequence updates the state where it lies in the cache. Prompts go chunk by chunk.
"""

from __future__ import annotations

from hotshoe.platform import DeviceFacts
from hotshoe.slots import StateSpaceSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StateBlock, judge_states

NORM_CODES = {"none": 0, "after": 1, "before": 2}
ACTIVATIONS = ("silu", "identity")
#: The order in which the kernel takes them.
WEIGHTS = ("conv", "conv_bias", "a", "d", "dt_bias", "norm")


def supports(spec: StateSpaceSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    heads, groups, parts = spec.num_heads, spec.num_groups, spec.norm_groups
    return judge_states(
        spec,
        facts,
        {
            f"activation {spec.activation} is not one of {', '.join(ACTIVATIONS)}": (
                spec.activation not in ACTIVATIONS
            ),
            f"norm {spec.norm} is not one of {', '.join(NORM_CODES)}": spec.norm not in NORM_CODES,
            f"{groups} groups do not divide {heads} heads": groups < 1 or heads % groups != 0,
            f"{parts} parts of a norm do not divide {spec.inner_size} channels": parts < 1
            or spec.inner_size % parts != 0,
        },
    )


class StateSpace(StateBlock):
    """See `hotshoe.slots.StateSpaceOp`."""

    def __init__(self, spec: StateSpaceSpec, facts: DeviceFacts) -> None:
        numbers = (
            spec.num_heads,
            spec.head_dim,
            spec.num_groups,
            spec.state_size,
            spec.conv_width,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            *spec.dt_limits,
            NORM_CODES[spec.norm],
            spec.norm_groups,
            spec.norm_eps,
            spec.activation == "silu",
            DTYPE_CODES[spec.dtype],
        )
        super().__init__(kernels(facts).state_space, spec, WEIGHTS, numbers)
