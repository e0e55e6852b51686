"""Candidate `native` of slot `rg_lru`: a recurrent block between its projections in C++."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, RgLruSpec, RgLruWeights, Verdict, whole_step
from hotshoe_cpu.native import DTYPE_CODES, kernels
from hotshoe_cpu.states import CHECKPOINT_CODES, StepArguments, judge_states


def supports(spec: RgLruSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    heads, inner = spec.num_heads, spec.inner_size
    uneven = heads < 1 or inner % heads != 0
    return judge_states(spec, facts, {f"{heads} heads do not divide {inner} channels": uneven})


class RgLru:
    """See `hotshoe.slots.RgLruOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: RgLruSpec, facts: DeviceFacts) -> None:
        self._kernel = kernels(facts).rg_lru
        self._width = spec.inner_size
        self._arguments = StepArguments(spec)
        self._numbers = (
            spec.inner_size,
            spec.num_heads,
            spec.conv_width,
            spec.block_size,
            CHECKPOINT_CODES[spec.checkpoints],
            DTYPE_CODES[spec.dtype],
        )

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: AttentionMetadata,
        weights: RgLruWeights,
    ) -> Tensor:
        # Rows behind the last request's are padding of the batch, if anything.
        out = torch.empty(projected.size(0), self._width, dtype=projected.dtype)
        self._kernel(
            out.data_ptr(),
            projected.data_ptr(),
            projected.stride(0),
            *self._arguments(cache, prepared),
            weights.conv.data_ptr(),
            weights.conv_bias.data_ptr(),
            weights.gates.data_ptr(),
            weights.gate_bias.data_ptr(),
            weights.rate.data_ptr(),
            *self._numbers,
        )
        return out
