"""Short convolution: what an LFM2 block has between its two projections, and its last inputs."""

from __future__ import annotations

from functools import partial

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Split
from hotshoe.layers.states import SmallWeight, StateLayer
from hotshoe.slots import ShortConvSpec, ShortConvWeights

SLOT = "short_conv"


class ShortConv(StateLayer[ShortConvSpec]):
    """One layer's convolution and gates over the last inputs of its sequences, whole on each rank.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: What it computes.
        prefix: Of the checkpoint names, such as "model.layers.0.conv.".
        bias: The convolution has biases.
    """

    def __init__(self, ctx: BuildContext, spec: ShortConvSpec, prefix: str, bias: bool) -> None:
        super().__init__(ctx, SLOT, spec, None, partial(ShortConvWeights, conv_bias=None))
        size = spec.inner_size
        shapes = {"conv": ("weight", (size, 1, spec.conv_width)), "conv_bias": ("bias", (size,))}
        if not bias:
            del shapes["conv_bias"]
        whole = Split(((0, size),))
        weights = {
            part: SmallWeight(((f"{prefix}conv.{name}", shape, whole),))
            for part, (name, shape) in shapes.items()
        }
        self.expect(ctx, SLOT, weights)
