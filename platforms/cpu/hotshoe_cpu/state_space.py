"""Candidate `native` of slot `state_space`: convolution, scan, gate and norm in C++.

One token of a sequence updates the state where it lies in the cache. Prompts go chunk by chunk.
"""

from __future__ import annotations

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
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StepArguments, judge_states

NORM_CODES = {"none": 0, "after": 1, "before": 2}


def supports(spec: StateSpaceSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    heads, groups, parts = spec.num_heads, spec.num_groups, spec.norm_groups
    return judge_states(
        spec,
        facts,
        {
            f"activation {spec.activation} is not silu": spec.activation != "silu",
            f"norm {spec.norm} is not one of {', '.join(NORM_CODES)}": spec.norm not in NORM_CODES,
            f"{groups} groups do not divide {heads} heads": groups < 1 or heads % groups != 0,
            f"{parts} parts of a norm do not divide {spec.inner_size} channels": parts < 1
            or spec.inner_size % parts != 0,
        },
    )


class StateSpace:
    """See `hotshoe.slots.StateSpaceOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: StateSpaceSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).state_space
        self._width = spec.inner_size
        self._arguments = StepArguments(spec)
        self._numbers = (
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
            DTYPE_CODES[spec.dtype],
        )

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: StateSpaceWeights,
    ) -> Tensor:
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(projected.size(0), self._width, dtype=projected.dtype)
        self._kernel(
            out.data_ptr(),
            projected.data_ptr(),
            projected.stride(0),
            *self._arguments(cache, prepared),
            weights.conv.data_ptr(),
            0 if weights.conv_bias is None else weights.conv_bias.data_ptr(),
            weights.a.data_ptr(),
            weights.d.data_ptr(),
            weights.dt_bias.data_ptr(),
            0 if weights.norm is None else weights.norm.data_ptr(),
            *self._numbers,
        )
        return out
