"""Decoders whose layers take an input of their own beside the residual (Gemma 3n and 4).

A second table has a row of all layers' inputs for each token; a matrix makes as many of the
embeddings, and both are added. `embed` appends the rows of the table to the embeddings, since
`forward` sees no ids. A family names the class of its layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    Embedding,
    ForwardBatch,
    GatedActivation,
    Holder,
    Linear,
    Matrix,
    Place,
    RMSNorm,
    Rotary,
    Rotation,
)
from hotshoe.slots import renewed
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import Mixer
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.stream_specs import PerLayerSpec
from hotshoe_models.values import refuse_stages

#: Maps (state, this layer's input [n, size] or None, the step, tokens to keep) to the next state.
Layer: TypeAlias = "Callable[[Tensor, Tensor | None, ForwardBatch, Tensor | None], Tensor]"


class PerLayerDecoder(DenseDecoder):
    """See `DenseDecoder`. What passes from layer to layer is a state, made of the embeddings.

    Attributes:
        layer_type: Builds a layer of the arguments that `build_layer` has.
        mixers: Of this stage's layers, by their numbers.

    Raises:
        ConfigError: Stages are to divide layers that need token ids or share keys and values.
    """

    layer_type: ClassVar[type[Any]]

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        shared = any(layer.shares is not None for layer in spec.layers)
        if shared or spec.per_layer is not None:
            refuse_stages(
                ctx,
                "layers of this model take inputs that are made of token ids, or share keys and "
                "values",
            )
        super().__init__(spec, ctx)
        self._inputs = None if spec.per_layer is None else _Inputs(spec, spec.per_layer, ctx)
        self._norm = norm(spec, ctx, spec.names.final_norm) if ctx.stage.is_last else None

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        self.mixers: dict[int, Mixer] = {}
        built = [self.build_layer(spec.sized(i), ctx, i, rotaries, self.mixers) for i in own]
        self.layers: list[Layer] = built

    def build_layer(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> Layer:
        """Build a layer, whose mixer joins those of the layers before it."""
        layer: Layer = self.layer_type(spec, ctx, i, rotaries, mixers)
        return layer

    def enter(self, hidden: Tensor) -> Tensor:
        """Make the first state of embeddings [num_tokens, hidden_size]."""
        return hidden

    def leave(self, state: Tensor) -> Tensor:
        """Make hidden states [s, hidden_size] of the last state."""
        return state

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings for ids [num_tokens] int32, and behind them the table's rows."""
        hidden = super().embed(ids)
        return hidden if self._inputs is None else torch.cat((hidden, self._inputs.rows(ids)), 1)

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """See `hotshoe.models.base.Model`."""
        inputs: Tensor | None = None
        if self._inputs is not None:
            hidden, rows = hidden[:, : self.hidden_size].contiguous(), hidden[:, self.hidden_size :]
            inputs = self._inputs(hidden, rows)
        state = self.enter(hidden)
        for i, layer in enumerate(self.layers):
            keep = batch.outputs_at if i + 1 == len(self.layers) else None
            own = None if inputs is None else inputs[:, i]
            state = layer(state, own if own is None or keep is None else own[keep], batch, keep)
        return state if self._norm is None else self._norm(self.leave(state))


class _Inputs:
    """All layers' inputs: (norm(projection of embeddings) + row of the table) / sqrt(2)."""

    def __init__(self, spec: DecoderSpec, per_layer: PerLayerSpec, ctx: BuildContext) -> None:
        count, size = len(spec.layers), per_layer.size
        table = "model.embed_tokens_per_layer"
        self._table = Embedding(ctx, table, per_layer.rows, count * size, per_layer.scale)
        self._bound = per_layer.rows if per_layer.rows < spec.vocab_size else None
        width = count * size
        self._project = linear(ctx, "model.per_layer_model_projection", width, spec.hidden_size)
        self._factor = spec.hidden_size**-0.5
        self._norm = RMSNorm(
            ctx, "model.per_layer_projection_norm", size, spec.norm_eps, spec.norm_offset
        )
        self._shape = (-1, count, size)

    def rows(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, layers * size]; ids behind the table read its first row."""
        if self._bound is not None:
            ids = torch.where(ids < self._bound, ids, 0)
        return self._table(ids)

    def __call__(self, hidden: Tensor, rows: Tensor) -> Tensor:
        """Return [num_tokens, layers, size]."""
        projected = self._project(hidden).mul_(self._factor)
        normed = self._norm(projected.view(-1, self._shape[2]))
        assert isinstance(normed, Tensor)
        return normed.view(self._shape).add_(rows.reshape(self._shape)).mul_(0.5**0.5)


class LayerInput:
    """What a layer makes of its own input: norm(up(act(gate(x)) * input))."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int) -> None:
        assert spec.per_layer is not None
        prefix, size = spec.names.layer.format(i), spec.per_layer.size
        self._gate = linear(ctx, f"{prefix}per_layer_input_gate", size, spec.hidden_size)
        self._act = GatedActivation(ctx, size, spec.activation)
        self._up = linear(ctx, f"{prefix}per_layer_projection", spec.hidden_size, size)
        self._norm = norm(spec, ctx, f"{prefix}post_per_layer_input_norm")

    def __call__(self, x: Tensor, own: Tensor) -> Tensor:
        """Map x [n, hidden_size] and the input [n, size] to a new tensor like x."""
        acted = self._act(torch.cat((self._gate(x), own), dim=1))
        return self._norm(self._up(acted))


class Vector:
    """A tensor [size] that all ranks hold and the layer multiplies by itself."""

    def __init__(self, ctx: BuildContext, name: str, size: int) -> None:
        self._place = (ctx.device, ctx.torch_dtype)
        self.value = torch.empty(0)
        holder = Holder("rms_norm", "layer", ctx.dtype, self.state)
        place = Place(holder, "value", (0, size), ())
        ctx.weights.expect(name, (size,), self._take, place=place)

    def _take(self, tensor: Tensor) -> None:
        self.value = renewed(self.value, tensor.to(*self._place, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return the tensor."""
        return {"value": self.value} if self.value.numel() else {}


def linear(ctx: BuildContext, name: str, rows: int, columns: int) -> Linear:
    """Build a matrix [rows, columns] that all ranks hold."""
    return Linear(ctx, Matrix(ctx, [(name, rows)], columns))


def norm(spec: DecoderSpec, ctx: BuildContext, name: str | None) -> Callable[[Tensor], Tensor]:
    """Build an RMS norm over the hidden size whose result nobody quantizes."""
    offset, last = spec.norm_offset, name == spec.names.final_norm
    if last and spec.final_norm_offset is not None:
        offset = spec.final_norm_offset
    built = RMSNorm(ctx, name, spec.hidden_size, spec.norm_eps, offset)

    def run(x: Tensor) -> Tensor:
        out = built(x)
        assert isinstance(out, Tensor)
        return out

    return run
