"""Gated linear recurrence: what a block of Griffin has between its projections, and its states."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Split
from hotshoe.layers.states import SmallWeight, StateLayer
from hotshoe.slots import RgLruSpec, RgLruWeights

SLOT = "rg_lru"
#: What the gate of the decay is multiplied by. Source: arXiv:2402.19427, section 2.4.
SHARPNESS = 8.0


class RgLru(StateLayer[RgLruSpec]):
    """One layer's convolution, recurrence and gate over the states of its sequences, whole on each
    rank.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: What it computes.
        prefix: Of the checkpoint names, such as "model.layers.0.temporal_block.".
    """

    def __init__(self, ctx: BuildContext, spec: RgLruSpec, prefix: str) -> None:
        super().__init__(ctx, SLOT, spec, (1, spec.inner_size, 1), RgLruWeights)
        self.expect(ctx, SLOT, _weights(spec, prefix))


def _weights(spec: RgLruSpec, prefix: str) -> dict[str, SmallWeight]:
    """Describe the weights by their part in `RgLruWeights`."""
    inner, heads, size = spec.inner_size, spec.num_heads, spec.head_dim

    def weight(*names: str, shape: tuple[int, ...], exact: bool = False) -> SmallWeight:
        rows = shape[0] if shape[0] > 1 else torch.Size(shape).numel()
        split = Split(((0, rows),))
        return SmallWeight(tuple((prefix + name, shape, split) for name in names), exact)

    def by_head(stacked: Tensor) -> Tensor:
        own = stacked.reshape(2, heads, size, size)
        return own.permute(1, 2, 0, 3).reshape(heads, size, 2 * size)

    gates = weight(
        *(f"rg_lru.{kind}_gate_weight" for kind in ("input", "recurrent")),
        shape=(heads, size, size),
        exact=True,
    )
    biases = weight(
        *(f"rg_lru.{kind}_gate_bias" for kind in ("input", "recurrent")),
        shape=(heads, size),
        exact=True,
    )
    rate = weight("rg_lru.recurrent_param", shape=(inner,), exact=True)
    return {
        "conv": weight("conv_1d.weight", shape=(inner, 1, spec.conv_width)),
        "conv_bias": weight("conv_1d.bias", shape=(inner,)),
        "gates": replace(gates, read=by_head),
        "gate_bias": replace(biases, read=lambda both: both.reshape(2, inner)),
        "rate": replace(rate, read=lambda x: -SHARPNESS * F.softplus(x.float())),
    }
