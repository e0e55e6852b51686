"""Candidate `native` of slot `gated_delta`: convolution, delta rule, norm and gate in C++.

One token of a sequence updates the state where it lies in the cache. Prompts go chunk by chunk.
"""

from __future__ import annotations

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
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StepArguments, judge_states

DECAYS, GATES = ("head", "channel"), ("silu", "sigmoid")


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


class GatedDelta:
    """See `hotshoe.slots.GatedDeltaOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: GatedDeltaSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).gated_delta
        self._width = spec.inner_size
        self._arguments = StepArguments(spec)
        self._numbers = (
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

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(projected.size(0), self._width, dtype=projected.dtype)
        self._kernel(
            out.data_ptr(),
            projected.data_ptr(),
            projected.stride(0),
            *self._arguments(cache, prepared),
            weights.conv.data_ptr(),
            weights.a.data_ptr(),
            weights.dt_bias.data_ptr(),
            weights.norm.data_ptr(),
            *self._numbers,
        )
        return out
