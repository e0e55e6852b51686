"""Candidate of slot `short_conv`: the convolution of other blocks with states, between gates."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, ShortConvSpec, ShortConvWeights, Verdict, whole_step
from hotshoe_triton.device import judge
from hotshoe_triton.states import Convolution


def supports(spec: ShortConvSpec, facts: DeviceFacts) -> Verdict:
    """Judge the type."""
    return judge(facts, spec.dtype, {})


class ShortConv:
    """See `hotshoe.slots.ShortConvOp`."""

    prepare = staticmethod(whole_step)

    def __init__(self, spec: ShortConvSpec, facts: DeviceFacts) -> None:
        self._convolve, self._size = Convolution(spec, facts), spec.inner_size

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor],
        prepared: AttentionMetadata,
        weights: ShortConvWeights,
    ) -> Tensor:
        if not len(projected):
            return projected.new_empty((0, self._size))
        return self._convolve(projected, cache[0], prepared, weights.conv, weights.conv_bias)
