"""Candidate `native` of slot `short_conv`: convolution and both gates in one pass in C++."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, ShortConvSpec, ShortConvWeights, Verdict, whole_step
from hotshoe_cpu.states import Convolution, judge_states


def supports(spec: ShortConvSpec, facts: DeviceFacts) -> Verdict:
    """Judge types and kinds; sizes are free."""
    return judge_states(spec, facts, {})


class ShortConv:
    """See `hotshoe.slots.ShortConvOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: ShortConvSpec, facts: DeviceFacts) -> None:
        self._convolve = Convolution(spec, facts)

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor],
        prepared: AttentionMetadata,
        weights: ShortConvWeights,
    ) -> Tensor:
        return self._convolve(projected, cache[0], prepared, weights.conv, weights.conv_bias)
