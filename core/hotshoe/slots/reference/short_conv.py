"""Reference of slot `short_conv`: a short causal convolution between two gates, float32 inside."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots.mixers import ShortConvWeights
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.states import Plan, Planner, convolve
from hotshoe.slots.state_specs import ShortConvSpec


class ShortConv:
    """See `hotshoe.slots.ShortConvOp`."""

    def __init__(self, spec: ShortConvSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        self.prepare = Planner(spec).prepare

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor],
        prepared: Plan,
        weights: ShortConvWeights,
    ) -> Tensor:
        before, behind, x = torch.split(projected.float(), list(self._spec.sections), dim=-1)
        mixed = convolve(before * x, cache[0], prepared, weights.conv, weights.conv_bias)
        return (behind * mixed).to(torch_dtype(self._spec.dtype))
