"""Decoder layers, and all layers of a stage, that one candidate serves whole.

A model describes a layer by `LayerParts`; who refuses it leaves the model to compose the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import cast

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.paged import PagedCache
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.weights import Holder, Place
from hotshoe.slots import (
    CacheView,
    DecoderLayerOp,
    DecoderLayerSpec,
    LayerContext,
    LinearOp,
    ModelStepOp,
    ModelStepSpec,
    WholeLayer,
)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A layer as a model describes it.

    Attributes:
        spec: The question.
        matrices: "qkv", "o", "gate_up" and "down".
        norms: Checkpoint names of "input_norm" and "mlp_norm", of "q_norm" and "k_norm" if there.
        sinks: Checkpoint name of the logits of sinks; None for none.
        rotary: None for no rotation.
    """

    spec: DecoderLayerSpec
    matrices: Mapping[str, Matrix]
    norms: Mapping[str, str]
    sinks: str | None = None
    rotary: Rotary | None = None


class HeldLayer(PagedCache):
    """The weights and the cache of one layer, held for an operation."""

    def __init__(
        self, ctx: BuildContext, parts: LayerParts, slot: str, asked: object, op: WholeLayer
    ) -> None:
        spec = parts.spec
        super().__init__(ctx, spec.attention, op.layout, ((slot, spec), op.prepare))
        ctx.cache_layers.append(self)
        ctx.weight_bytes.append(op.nbytes)
        self._dtype, self._rank = ctx.torch_dtype, ctx.rank
        adapted = {}
        for name, matrix in parts.matrices.items():
            holder = matrix.holder(ctx, slot, asked, op)
            product = cast("LinearOp", partial(op.product, name))
            added = matrix.adapted(ctx, product)
            if added is not None:
                adapted[name] = added
            matrix.deliver(ctx, partial(op.load, name), holder, f"{name}.")
        holder = ctx.holder(slot, asked, ctx.dtype, op)
        for name, stored in parts.norms.items():
            inner = name in ("q_norm", "k_norm")
            size = spec.attention.head_dim if inner else spec.hidden_size
            sink = partial(self._take, op, name)
            ctx.expect_alone(holder, f"{stored}.weight", size, sink, f"{name}.weight")
        if parts.sinks is not None:
            self._expect_sinks(ctx, holder, parts.sinks, op)
        table = None if parts.rotary is None else parts.rotary.table
        op.bind(LayerContext(table, parts.matrices["down"].sum_of(ctx), adapted))

    def _take(self, op: WholeLayer, part: str, tensor: Tensor) -> None:
        op.load(part, {"weight": [tensor.to(self._dtype)]})

    def _expect_sinks(self, ctx: BuildContext, holder: Holder, name: str, op: WholeLayer) -> None:
        heads = self.spec.num_heads

        def take(tensor: Tensor) -> None:
            own = tensor[heads * self._rank : heads * (self._rank + 1)]
            op.load("sinks", {"weight": [own.to(torch.float32)]})

        place = Place(holder, "sinks.weight", (0, heads), ())
        ctx.weights.expect(name, (heads * ctx.size,), take, place=place)


class DecoderLayer(HeldLayer):
    """One layer in one call: maps x [num_tokens, hidden_size] to the same shape."""

    def __init__(self, ctx: BuildContext, parts: LayerParts, op: DecoderLayerOp) -> None:
        super().__init__(ctx, parts, "decoder_layer", parts.spec, op)
        self._op = op

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Compute every token of a step; between pieces where it is recorded in pieces."""
        run = partial(self._run, batch.positions)
        return run(x, batch.views) if batch.between is None else batch.between(x, run)

    def _run(self, positions: Tensor, x: Tensor, views: Sequence[CacheView]) -> Tensor:
        view = views[self.view]
        positions = positions[: len(x)]
        return self._op(x, self.cache, positions, view.slot_mapping, view.prepared)


class ModelStep:
    """All layers of a stage in one call."""

    def __init__(
        self, ctx: BuildContext, parts: Sequence[LayerParts], spec: ModelStepSpec, op: ModelStepOp
    ) -> None:
        self._op = op
        self.layers = [
            HeldLayer(ctx, one, "model_step", spec, layer)
            for one, layer in zip(parts, op.layers, strict=True)
        ]

    def __call__(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """See `DecoderLayer`."""
        run = partial(self._run, batch.positions)
        return run(x, batch.views) if batch.between is None else batch.between(x, run)

    def _run(self, positions: Tensor, x: Tensor, views: Sequence[CacheView]) -> Tensor:
        caches = [layer.cache for layer in self.layers]
        own = [views[layer.view] for layer in self.layers]
        return self._op(x, caches, positions[: len(x)], own)


def build_layer(ctx: BuildContext, parts: LayerParts | None) -> DecoderLayer | None:
    """Ask slot `decoder_layer`; None where the model has to compose the layer, as for trees."""
    if parts is None or ctx.tree is not None:
        return None
    op = ctx.selector.choose("decoder_layer", parts.spec)
    return None if op is None else DecoderLayer(ctx, parts, op)


def build_step(ctx: BuildContext, layers: Sequence[LayerParts | None]) -> ModelStep | None:
    """Ask slot `model_step`; None where layers are asked for one by one."""
    parts = [one for one in layers if one is not None]
    if not parts or len(parts) < len(layers) or ctx.tree is not None:
        return None
    alike = groupby(one.spec for one in parts)
    spec = ModelStepSpec(tuple((one, len(list(group))) for one, group in alike))
    op = ctx.selector.choose("model_step", spec)
    return None if op is None else ModelStep(ctx, parts, spec, op)


def shared(ctx: BuildContext, spec: DecoderLayerSpec) -> DecoderLayerSpec:
    """Return a layer's specification with what the engine adds to it: ranks and adapters."""
    return replace(spec, ranks=ctx.size, adapters=ctx.adapters is not None)
