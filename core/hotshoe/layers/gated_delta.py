"""Gated-delta layer: what lies between the projections of such linear attention, and its states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Section, Split
from hotshoe.layers.states import SmallWeight, StateLayer, decay_rates
from hotshoe.slots import GatedDeltaSpec, GatedDeltaWeights

SLOT = "gated_delta"


@dataclass(frozen=True, slots=True)
class DeltaNames:
    """Checkpoint names of a block's small weights, relative to its prefix.

    Attributes:
        conv: One for q, k and v together, or one for each.
        decay_axes: Axes of size 1 in front of and behind the heads of `decay`.
    """

    conv: tuple[str, ...] = ("conv1d.weight",)
    decay: str = "A_log"
    decay_axes: tuple[int, int] = (0, 0)
    dt_bias: str = "dt_bias"
    norm: str = "norm.weight"


class GatedDelta(StateLayer[GatedDeltaSpec]):
    """One layer's convolution, delta rule, norm and gate over the states of its sequences.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: The whole model's; key heads are divided among the ranks, with the heads they serve.
        prefix: Of the checkpoint names, such as "model.layers.0.linear_attn.".
        names: Behind it.

    Attributes:
        spec: This rank's.

    Raises:
        ConfigError: The key heads cannot be divided among the ranks.
    """

    def __init__(
        self, ctx: BuildContext, spec: GatedDeltaSpec, prefix: str, names: DeltaNames
    ) -> None:
        each = spec.num_heads // spec.num_key_heads
        heads, decays = (delta_rows(ctx, spec, [part]) for part in ("beta", "decay"))
        own = replace(spec, num_heads=heads.size, num_key_heads=heads.size // each)
        state = (own.num_heads, own.value_dim, own.key_dim)
        super().__init__(ctx, SLOT, own, state, GatedDeltaWeights)
        before, behind = names.decay_axes
        logs = (*[1] * before, spec.num_heads, *[1] * behind)
        parts = ["qkv"] if len(names.conv) == 1 else list("qkv")
        sizes = [spec.num_key_heads * sum(spec.widths[p] for p in part) for part in parts]
        conv = tuple(
            (prefix + name, (size, 1, spec.conv_width), delta_rows(ctx, spec, part))
            for name, size, part in zip(names.conv, sizes, parts, strict=True)
        )
        every = Split(((0, spec.value_dim),))
        weights = {
            "conv": SmallWeight(conv),
            "a": SmallWeight(((prefix + names.decay, logs, heads),), True, decay_rates),
            "dt_bias": SmallWeight(((prefix + names.dt_bias, (spec.num_decays,), decays),), True),
            "norm": SmallWeight(((prefix + names.norm, (spec.value_dim,), every),)),
        }
        self.expect(ctx, SLOT, weights)


def delta_rows(ctx: BuildContext, spec: GatedDeltaSpec, parts: Sequence[str]) -> Split:
    """Return this rank's rows of a projection to parts of the input, as `spec.widths` names them.

    Raises:
        ConfigError: The key heads cannot be divided among the ranks.
    """
    sections = [Section(spec.num_key_heads, spec.widths[part]) for part in parts]
    return ctx.split("key heads", *sections)
