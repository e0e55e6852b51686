"""Selective scan: what a Mamba-1 block has between its two projections, and its states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.scan_adapters import AdaptedScan
from hotshoe.layers.split import Split
from hotshoe.layers.states import SmallWeight, StateLayer, decay_rates
from hotshoe.slots import SelectiveScanSpec, SelectiveScanWeights

SLOT = "selective_scan"


class SelectiveScan(StateLayer[SelectiveScanSpec]):
    """One layer's convolution, scan and gate over the states of its sequences.

    B, C and the steps of time are sums over all channels, so that the block is whole on each rank.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: What it computes.
        prefix: Of the checkpoint names, such as "model.layers.0.mamba.".
        conv_bias: The convolution has biases.
        norms: Names of the norms of the numbers of the steps of time, B and C; empty where these
            have no weights.
        weights: What a checkpoint has by other names, in place of those behind `prefix`.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: SelectiveScanSpec,
        prefix: str,
        conv_bias: bool,
        norms: Sequence[str] = (),
        weights: Mapping[str, SmallWeight] | None = None,
    ) -> None:
        make = partial(SelectiveScanWeights, conv_bias=None, norm=None)
        super().__init__(ctx, SLOT, spec, (1, spec.inner_size, spec.state_size), make)
        self.expect(ctx, SLOT, weights or _weights(spec, prefix, conv_bias, norms))
        matrices = {
            "project": (f"{prefix}x_proj", sum(spec.made), spec.inner_size),
            "dt": (f"{prefix}dt_proj", spec.inner_size, spec.dt_rank),
        }
        names = [name for name, _, _ in matrices.values()]
        self._adapted: AdaptedScan | None = None
        if ctx.adapters is not None and weights is None and ctx.adapters.takes(names):
            self._adapted = AdaptedScan(ctx, ctx.adapters, matrices)

    def __call__(self, projected: Tensor, batch: ForwardBatch) -> Tensor:
        """See `StateLayer`; each adapter's sequences have weights of their own."""
        adapted, view = self._adapted, batch.views[self.view]
        parts = [] if adapted is None else adapted.parts(len(projected), batch.shape, view)
        if adapted is None or not parts:
            return super().__call__(projected, batch)
        out = projected.new_empty(len(projected), self.spec.inner_size)
        for tokens, shape, own, place in parts:
            weights = replace(self._weights, **adapted.summed(place, self._held))
            prepared = self._prepare(shape, own)
            out[tokens] = self._run_with(weights, projected[tokens], prepared)
        return out


def _weights(
    spec: SelectiveScanSpec, prefix: str, conv_bias: bool, norms: Sequence[str]
) -> dict[str, SmallWeight]:
    """Describe the weights by their part in `SelectiveScanWeights`."""

    def weight(name: str, *shape: int, exact: bool = False) -> SmallWeight:
        return SmallWeight(((prefix + name, shape, Split(((0, shape[0]),))),), exact)

    inner = spec.inner_size
    found = {
        "conv": weight("conv1d.weight", inner, 1, spec.conv_width),
        "project": weight("x_proj.weight", sum(spec.made), inner),
        "dt": weight("dt_proj.weight", inner, spec.dt_rank),
        "dt_bias": weight("dt_proj.bias", inner, exact=True),
        "a": replace(weight("A_log", inner, spec.state_size, exact=True), read=decay_rates),
        "d": weight("D", inner, exact=True),
    }
    if conv_bias:
        found["conv_bias"] = weight("conv1d.bias", inner)
    if norms:
        parts = zip(norms, spec.made, strict=True)
        found["norm"] = SmallWeight(
            tuple((f"{prefix}{name}.weight", (n,), Split(((0, n),))) for name, n in parts)
        )
    return found
