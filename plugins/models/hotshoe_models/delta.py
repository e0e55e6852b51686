"""Mixer of linear attention with the gated delta rule, as a `DeltaBlock` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    GatedDelta,
    Linear,
    Matrix,
    Rotary,
    Rotation,
    Split,
    delta_rows,
)
from hotshoe.slots import GatedDeltaSpec, Quantized, QuantSpec
from hotshoe_models.spec import DecoderSpec, Projection


class DeltaMixer:
    """A gated-delta block over the states of sequences."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        block = spec.delta
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        quantize = spec.quantizes("state", ctx.format)
        self._delta = GatedDelta(ctx, block.delta, prefix, block.names)
        self._projections = [
            _Projected(ctx, block.delta, one, prefix, spec.hidden_size, quantize)
            for one in block.projections
        ]
        out, columns = f"{prefix}{block.out}", delta_rows(ctx, block.delta, ["v"])
        #: Heads of values of each key, and channels of a head, where they are to change places.
        self._tiles: tuple[int, int] | None = None
        if block.tiled and block.delta.num_heads != block.delta.num_key_heads:
            self._tiles = block.delta.num_heads // block.delta.num_key_heads, block.delta.value_dim
            columns = tiled(columns, block.delta.num_key_heads, *self._tiles)
            ctx = replace(ctx, adapters=None)  # whose channels have the other order
        self._out = Linear(
            ctx,
            Matrix(
                ctx,
                [(out, spec.hidden_size)],
                block.delta.inner_size,
                quantize=quantize,
                inputs=columns,
            ),
        )
        quants = {one.input_quant for one in self._projections}
        self.input_quant: QuantSpec | None = quants.pop() if len(quants) == 1 else None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        projected = torch.cat([project(hidden) for project in self._projections], dim=1)
        out = self._delta(projected, batch)
        out = out if keep is None else out[keep]
        if self._tiles is not None:
            heads = out.view(len(out), -1, *self._tiles)
            out = heads.transpose(1, 2).reshape(out.shape)
        return self._out(out)


class _Projected:
    """One of the projections: this rank's rows of one or several matrices."""

    def __init__(
        self,
        ctx: BuildContext,
        delta: GatedDeltaSpec,
        projection: Projection,
        prefix: str,
        size: int,
        quantize: bool,
    ) -> None:
        every = [part for _, parts in projection.matrices for part in parts]
        rows = delta_rows(ctx, delta, every)
        if projection.grouped:
            rows = ungrouped(rows, [delta.widths[part] for part in every])
        self._before: Linear | None = None
        if projection.before is not None:
            before = [(prefix + projection.before, projection.rank)]
            self._before = Linear(ctx, Matrix(ctx, before, size, quantize=quantize))
            size = projection.rank
        stacked = [
            (prefix + name, delta.num_key_heads * sum(delta.widths[part] for part in parts))
            for name, parts in projection.matrices
        ]
        self._last = Linear(ctx, Matrix(ctx, stacked, size, quantize=quantize, outputs=rows))
        self.input_quant = (self._before or self._last).input_quant

    def __call__(self, hidden: Tensor | Quantized) -> Tensor:
        return self._last(hidden if self._before is None else self._before(hidden))


def tiled(split: Split, keys: int, heads: int, width: int) -> Split:
    """Return where channels are of which a matrix takes the first head of every key first.

    Args:
        split: A rank's channels, one range, as if heads of a key lay together.
        keys, heads, width: Keys, heads of each key, and channels of a head.
    """
    begin, end = (channel // heads for channel in split.ranges[0])
    if end - begin == keys * width:
        return split
    steps = range(0, heads * keys * width, keys * width)
    return replace(split, ranges=tuple((step + begin, step + end) for step in steps))


def ungrouped(split: Split, widths: list[int]) -> Split:
    """Return where rows of several parts are that a checkpoint has unit by unit.

    Args:
        split: A rank's rows, one range for each part, as if each part lay on its own.
        widths: Rows of a unit in each part.
    """
    unit = split.ranges[0][0] // widths[0], split.ranges[0][1] // widths[0]
    ranges, before = [], 0
    for width in widths:
        for number in range(*unit):
            begin = number * sum(widths) + before
            ranges.append((begin, begin + width))
        before += width
    return Split(tuple(ranges))
