"""Layers that predict further tokens (MTP), as published behind the decoder in its checkpoint.

Each is a layer of the decoder's own shape. In front of it, a matrix joins the norm of a hidden
state with the norm of the embedding of the token behind; a norm and the decoder's output matrix
follow it. Only the first such layer is used: it also makes the further drafts of a chain, as all
that are published have one.

Sources: DeepSeek-V3's report, arXiv:2412.19437, section 2.2, and README_WEIGHTS.md beside its
checkpoint, whose layout GLM-4.5 has too; the modeling code beside MiMo-7B's checkpoint; the names
of tensors in Qwen3-Next's and Qwen3.5's files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, Linear, Matrix
from hotshoe.models.base import GENERATE
from hotshoe_models.decoder import DenseDecoder, Layer, build_rotaries
from hotshoe_models.norms import build_norm, plain_norm
from hotshoe_models.spec import DecoderSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherNames:
    """Checkpoint names of a layer that predicts further tokens.

    Attributes:
        embedding_norm, hidden_norm, join, final_norm: What the layer of the decoder lacks.
        beside: Prefix of these; None where it is the layer's own.
        hidden_first: The matrix takes the hidden state in front of the embedding.
        passes_normed: The next draft reads the state behind the final norm, not before it.
    """

    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    join: str = "eh_proj"
    final_norm: str = "shared_head.norm"
    beside: str | None = None
    hidden_first: bool = False
    passes_normed: bool = False


#: The layout of DeepSeek-V3 and GLM-4.5.
DEEPSEEK = FurtherNames()


class FurtherLayer:
    """See `hotshoe.models.base.DraftHead`.

    Args:
        spec: A decoder that has this layer at place `i`, with its names.
        ctx: The build context of the model.
        model: Gives its embedding and its output matrix.
        i: The layer's place.
        names: Of what is beside the layer.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, model: DenseDecoder, i: int, names: FurtherNames
    ) -> None:
        ctx = replace(ctx, adapters=None)  # adapters are trained without it
        prefix, size, before = spec.names.layer.format(i), spec.hidden_size, len(ctx.cache_layers)
        beside = prefix if names.beside is None else names.beside
        spec = replace(spec, names=replace(spec.names, final_norm=beside + names.final_norm))
        model.keep_embedding()
        self._model, self._names = model, names
        self._embedding_norm = plain_norm(spec, ctx, beside + names.embedding_norm)
        self._hidden_norm = plain_norm(spec, ctx, beside + names.hidden_norm)
        join = [(beside + names.join, size)]
        self._join = Linear(ctx, Matrix(ctx, join, 2 * size, quantize=False))
        self._layer = Layer(spec.sized(i), ctx, i, build_rotaries(ctx, spec.layers[i : i + 1]), {})
        self._layer.join(spec, ctx, i, None)
        first = spec.names.input_norm
        name = None if first is None else prefix + first
        self._first_norm = build_norm(spec, ctx, name, self._layer.input_quant)
        self.cache_layers = ctx.cache_layers[before:]

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`."""
        embedded = self._embedding_norm(self._model.embed(ids))
        state = self._hidden_norm(hidden)
        parts = (state, embedded) if self._names.hidden_first else (embedded, state)
        joined = self._join(torch.cat(parts, 1))
        first = joined if self._first_norm is None else self._first_norm(joined)
        normed, residual = self._layer(first, joined, batch, batch.outputs_at)
        assert isinstance(normed, Tensor)
        return (normed if self._names.passes_normed else residual), normed

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n] for hidden [n, hidden_size]."""
        return self._model.head(hidden, GENERATE).argmax(1)

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """See `hotshoe.models.base.LevelHead`."""
        return self._model.head(hidden, GENERATE).topk(count).indices


def add_further(
    model: DenseDecoder,
    spec: DecoderSpec,
    ctx: BuildContext,
    number: int,
    names: FurtherNames = DEEPSEEK,
    layer: str | None = None,
) -> DenseDecoder:
    """Give a decoder the first layer that predicts further tokens, where the engine asks for it.

    Args:
        model: Built of the specification.
        spec, ctx: Of the decoder, whose last layer it resembles.
        number: How many such layers the checkpoint has.
        names: Of what is beside the layer of the decoder.
        layer: Its prefix, with {} for its index; None where it lies behind the decoder's layers.
    """
    if ctx.further and number:
        i = len(spec.layers) if layer is None else 0
        own = replace(spec.names, layer=layer or spec.names.layer)
        whole = replace(spec, names=own, layers=(*spec.layers[:i], spec.layers[-1]))
        if ctx.stage.is_last:
            model.draft_head = FurtherLayer(whole, ctx, model, i, names)
        else:
            prefixes = (own.layer.format(i), names.beside or own.layer.format(i))
            ctx.weights.elsewhere(f"^{re.escape(prefix)}" for prefix in prefixes)
    return model
