"""Candidate `native` of slot `gated_delta`: convolution, delta rule, norm and gate in C++.

One token of a sequence updates the state where it lies in the cache. Prompts go chunk by chunk.
"""

from __future__ import annotations

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GatedDeltaSpec, Verdict
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StateBlock, judge_states

DECAYS, GATES = ("head", "channel"), ("silu", "sigmoid")
#: The order in which the kernel takes them.
WEIGHTS = ("conv", "a", "dt_bias", "norm")


def supports(spec: GatedDeltaSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    heads, keys, floor = spec.num_heads, spec.num_key_heads, spec.decay_floor
    return judge_states(
        spec,
        facts,
        {
            f"decay {spec.decay} is not one of {', '.join(DECAYS)}": spec.decay not in DECAYS,
            f"gate {spec.gate} is not one of {', '.join(GATES)}": spec.gate not in GATES,
            f"decay_floor {floor} is not below 0": floor is not None and not floor < 0,
            f"{keys} key heads do not divide {heads} heads": keys < 1 or heads % keys != 0,
        },
    )


class GatedDelta(StateBlock):
    """See `hotshoe.slots.GatedDeltaOp`."""

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        numbers = (
            spec.num_heads,
            spec.num_key_heads,
            spec.key_dim,
            spec.value_dim,
            spec.conv_width,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            spec.decay == "channel",
            spec.gate == "silu",
            spec.norm_eps,
            spec.beta_scale,
            spec.decay_floor or 0.0,
            DTYPE_CODES[spec.dtype],
        )
        super().__init__(kernels(facts).gated_delta, spec, WEIGHTS, numbers)
