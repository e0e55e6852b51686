"""State-space layer: what a Mamba-2 block has between its two projections, and its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.split import Section, Split
from hotshoe.layers.states import SmallWeight, StateLayer, decay_rates
from hotshoe.slots import StateSpaceSpec, StateSpaceWeights

SLOT = "state_space"


class StateSpace(StateLayer[StateSpaceSpec]):
    """One layer's convolution, scan, gate and norm over the states of its sequences.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: The whole model's; heads and groups are divided among the ranks.
        prefix: Of the checkpoint names, such as "model.layers.0.mamba.".
        conv_bias: The convolution has biases.

    Attributes:
        spec: This rank's.
        inputs: This rank's part of the rows of the projection before it: z, x, B, C and dt.
        outputs: This rank's part of the channels that the projection behind it takes.

    Raises:
        ConfigError: Heads or groups cannot be divided among the ranks.
    """

    def __init__(
        self, ctx: BuildContext, spec: StateSpaceSpec, prefix: str, conv_bias: bool
    ) -> None:
        parts = _Parts.of(ctx, spec)
        own = parts.own(spec, ctx.size)
        self.inputs, self.outputs, self._columns = parts.inputs, parts.outputs, parts.columns
        weights = partial(StateSpaceWeights, conv_bias=None, norm=None)
        super().__init__(ctx, SLOT, own, (own.num_heads, own.head_dim, own.state_size), weights)
        self.expect(ctx, SLOT, _weights(spec, prefix, conv_bias, parts))

    def __call__(self, projected: Tensor, batch: ForwardBatch) -> Tensor:
        """Map projected [num_tokens, inner_size + conv_size + num_heads], which may be overwritten,
        to [num_tokens, outputs.size]."""
        out = super().__call__(projected, batch)
        return out if self.outputs.size == self.spec.inner_size else out[:, self._columns]


def _weights(
    spec: StateSpaceSpec, prefix: str, conv_bias: bool, parts: _Parts
) -> dict[str, SmallWeight]:
    """Describe the weights by their part in `StateSpaceWeights`."""

    def weight(name: str, shape: tuple[int, ...], split: Split, exact: bool = False) -> SmallWeight:
        return SmallWeight(((prefix + name, shape, split),), exact)

    heads, wide = (spec.num_heads,), (spec.conv_size,)
    found = {
        "conv": weight("conv1d.weight", (*wide, 1, spec.conv_width), parts.conv),
        "a": replace(weight("A_log", heads, parts.heads, True), read=decay_rates),
        "d": weight("D", heads, parts.heads, True),
        "dt_bias": weight("dt_bias", heads, parts.heads, True),
    }
    if conv_bias:
        found["conv_bias"] = weight("conv1d.bias", wide, parts.conv)
    if spec.norm != "none":
        found["norm"] = weight("norm.weight", (spec.inner_size,), parts.inner)
    return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """One rank's part of a block: of its heads, of the channels of x, of those of B and of C."""

    heads: Split
    inner: Split
    inputs: Split
    conv: Split
    outputs: Split

    @classmethod
    def of(cls, ctx: BuildContext, spec: StateSpaceSpec) -> _Parts:
        """Divide heads; where there is a norm, by groups of channels that are normed together.

        Several ranks compute the same group where there are more ranks than groups.

        Raises:
            ConfigError: Heads or groups cannot be divided among the ranks.
        """
        split: Callable[..., Split] = partial(ctx.split, "state-space heads")
        if spec.norm == "none":
            heads, inner = Section(spec.num_heads), Section(spec.num_heads, spec.head_dim)
            group = Section(spec.num_groups, spec.state_size, shared=True)
        else:
            parts, widths = spec.norm_groups, (spec.num_heads, spec.inner_size, spec.group_size)
            heads, inner, group = (Section(parts, n // parts, shared=True) for n in widths)
        return cls(
            split(heads),
            split(inner),
            split(inner, inner, group, group, heads),
            split(inner, group, group),
            split(Section(spec.num_heads, spec.head_dim)),
        )

    def own(self, spec: StateSpaceSpec, size: int) -> StateSpaceSpec:
        """Return the specification of this part, one of `size`."""
        group = (self.conv.size - self.inner.size) // 2
        return replace(
            spec,
            num_heads=self.heads.size,
            num_groups=group // spec.state_size,
            norm_groups=max(spec.norm_groups // size, 1),
        )

    @property
    def columns(self) -> slice:
        """Which of the channels that this rank computes go into the projection behind."""
        [(begin, end)], [(first, _)] = self.outputs.ranges, self.inner.ranges
        return slice(begin - first, end - first)
