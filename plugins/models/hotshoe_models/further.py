"""Layers that predict further tokens (MTP), as published behind the decoder in its checkpoint.

Each is a layer of the decoder's own shape. In front of it, a matrix joins the norm of a hidden
state with the norm of the embedding of the token behind; a norm and the decoder's output matrix
follow it. A checkpoint may have several such layers, one for each draft of a chain.

Sources: DeepSeek-V3's report, arXiv:2412.19437, section 2.2, and README_WEIGHTS.md beside its
checkpoint, whose layout GLM-4.5 has too; the modeling code beside MiMo-7B's checkpoint; the names
of tensors in Qwen3-Next's and Qwen3.5's files. Modules of other families name theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, Embedding, ForwardBatch, Linear, Logits, Matrix
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE, DraftHead
from hotshoe.slots import Quantized
from hotshoe_models.decoder import DenseDecoder, Layer, build_rotaries
from hotshoe_models.norms import build_norm, plain_norm
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.values import refuse
from hotshoe_models.whole import Whole

Decoder = TypeVar("Decoder", bound=DenseDecoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherNames:
    """Checkpoint names of a layer that predicts further tokens.

    Attributes:
        embedding_norm, hidden_norm, join, final_norm: What the layer of the decoder lacks. There is
            no final norm but the decoder's where that is None.
        beside: Prefix of these; None where it is the layer's own.
        lm_head: An output matrix of its own, behind the layer's prefix; None for the decoder's.
        embedding: The whole name of an embedding of its own; None for the decoder's.
        hidden_first: The matrix takes the hidden state in front of the embedding.
        passes_normed: The next draft reads the state behind the final norm, not before it.
        stored_join: Quantized checkpoints have the matrix as their lists say. In others it is made
            of plain numbers, though lists may not say so.
        blocks: Of each layer, numbered as layers themselves.
    """

    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    join: str = "eh_proj"
    final_norm: str | None = "shared_head.norm"
    beside: str | None = None
    lm_head: str | None = None
    embedding: str | None = None
    hidden_first: bool = False
    passes_normed: bool = False
    stored_join: bool = False
    blocks: int = 1


#: The layout of DeepSeek-V3 and GLM-4.5.
DEEPSEEK = FurtherNames()
#: That of Hy3 and Hy4, which hand on what the norm behind the layer puts out.
NORMED = FurtherNames(final_norm="final_layernorm", passes_normed=True)
#: That of Ling, LongCat Flash and Nemotron 3.
LISTED = replace(NORMED, stored_join=True)


class ResidualDecoder(DenseDecoder):
    """A decoder whose final states carry those before its final norm as further columns, for a
    layer that reads these."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        super().__init__(spec, ctx)
        if ctx.stage.is_last:
            self.layers[-1] = cast("Layer", Keeping(self.layers[-1]))

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """See `DenseDecoder`; states before the norm are left out."""
        return super().head(hidden[:, : self.hidden_size].contiguous(), task)


class Keeping:
    """A decoder's last layer, behind whose normed states lie those before the norm."""

    def __init__(self, layer: Layer | Whole) -> None:
        self._layer = layer

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return [n, 2 * hidden_size], and the residual; see `Layer`."""
        normed, residual = self._layer(hidden, residual, batch, keep)
        assert isinstance(normed, Tensor)
        return torch.cat((normed, residual), 1), residual


class FurtherLayer:
    """See `hotshoe.models.base.DeepHead`.

    Args:
        spec: A decoder that ends with this layer, with its names; it may have several blocks, each
            described as a layer.
        ctx: The build context of the model.
        model: Gives its embedding, and its output matrix where there is no other.
        i: The place of the first.
        names: Of what is beside the layer.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, model: DenseDecoder, i: int, names: FurtherNames
    ) -> None:
        ctx = replace(ctx, adapters=None)  # adapters are trained without it
        size, before, places = spec.hidden_size, len(ctx.cache_layers), range(i, len(spec.layers))
        prefix, last = (spec.names.layer.format(place) for place in (i, places[-1]))
        beside = prefix if names.beside is None else names.beside
        if names.final_norm is not None:
            final = (last if names.beside is None else beside) + names.final_norm
            spec = replace(spec, names=replace(spec.names, final_norm=final))
        self._embed: Callable[[Tensor], Tensor] = model.embed
        if names.embedding is None:
            model.keep_embedding()
        else:
            self._embed = Embedding(ctx, names.embedding, spec.table_size or spec.vocab_size, size)
        self._model, self._names, self._size = model, names, size
        self._embedding_norm = plain_norm(spec, ctx, beside + names.embedding_norm)
        self._hidden_norm = plain_norm(spec, ctx, beside + names.hidden_norm)
        join = [(beside + names.join, size)]
        stored = names.stored_join and not ctx.format.online
        self._join = Linear(ctx, Matrix(ctx, join, 2 * size, quantize=stored))
        rotaries = build_rotaries(ctx, spec.layers[i:])
        self._layers = [Layer(spec.sized(at), ctx, at, rotaries, {}) for at in places]
        for at, layer, behind in zip(places, self._layers, [*self._layers[1:], None], strict=True):
            layer.join(spec, ctx, at, behind)
        mixing = [spec.layers[at].mixer != "mlp" for at in places]
        self._cut = len(mixing) - 1 - mixing[::-1].index(True)
        first = spec.names.input_norm
        name = None if first is None else prefix + first
        self._first_norm = build_norm(spec, ctx, name, self._layers[0].input_quant)
        self._lm_head: Logits | None = None
        if names.lm_head is not None:
            quantize = spec.quantizes("lm_head", ctx.format)
            own = beside + names.lm_head
            self._lm_head = Logits(ctx, own, spec.vocab_size, size, quantize=quantize)
        self.cache_layers = ctx.cache_layers[before:]
        self.following: Sequence[DraftHead] = ()

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`; the first columns of wide states are the final
        ones, which this head does not take."""
        if hidden.shape[1] != self._size:
            hidden = hidden[:, self._size :].contiguous()
        embedded = self._embedding_norm(self._embedded(ids))
        state = self._hidden_norm(hidden)
        parts = (state, embedded) if self._names.hidden_first else (embedded, state)
        residual = self._join(torch.cat(parts, 1))
        normed = residual if self._first_norm is None else self._first_norm(residual)
        for i, layer in enumerate(self._layers):  # behind the last mixer, few tokens go on
            keep = batch.outputs_at if i == self._cut else None
            normed, residual = layer(normed, residual, batch, keep)
        assert isinstance(normed, Tensor)
        return (normed if self._names.passes_normed else residual), normed

    def _embedded(self, ids: Tensor) -> Tensor:
        """Return embeddings alone, whatever the decoder has behind them."""
        found = self._embed(ids)
        return found if found.shape[1] == self._size else found[:, : self._size].contiguous()

    def logits(self, hidden: Tensor) -> Tensor:
        """Return [n, vocab_size] for hidden [n, hidden_size]."""
        if self._lm_head is None:
            return self._model.head(hidden, GENERATE)
        return self._lm_head(hidden)

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n] for hidden [n, hidden_size]."""
        return self.logits(hidden).argmax(1)

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """See `hotshoe.models.base.LevelHead`."""
        return self.logits(hidden).topk(count).indices


def refuse_further(ctx: BuildContext, why: str) -> None:
    """Refuse layers that predict further tokens in a form that is not read, if they are wanted.

    Raises:
        ConfigError: The engine asks for them.
    """
    if ctx.further:
        raise ConfigError(
            f"speculative_config: method mtp cannot use this model's layers: {why}; use another "
            "method, such as auto or draft_model"
        )


def further_type(
    config: ModelConfig, key: str, default: str, known: Sequence[str], at: int = 0
) -> str:
    """Return the type of a layer that predicts further tokens, as a list says it.

    Args:
        at: Which of them; those behind the list are like its last one.

    Raises:
        CheckpointError: The key has no list of known types.
    """
    listed = [default] if config.get(key) is None else config.get(key)
    if not isinstance(listed, list) or not listed or any(one not in known for one in listed):
        raise refuse(config, key, f"needs a list of {' and '.join(known)}")
    return str(listed[min(at, len(listed) - 1)])


def add_further(
    model: Decoder,
    spec: DecoderSpec,
    ctx: BuildContext,
    number: int,
    names: FurtherNames = DEEPSEEK,
    layer: str | None = None,
    own: Sequence[LayerSpec] = (),
) -> Decoder:
    """Give a decoder its layers that predict further tokens, as many as the engine asks for.

    Of layers that share what is beside them, only the first is used.

    Args:
        model: Built of the specification.
        spec, ctx: Of the decoder, whose names it has.
        number: How many such layers the checkpoint has.
        names: Of what is beside the layer of the decoder.
        layer: Its prefix, with {} for its index; None where it lies behind the decoder's layers.
        own: What the layers are; by default, like the decoder's last one. Those that are not
            described are like the last one that is.
    """
    blocks, shared = names.blocks, names.beside is not None or names.embedding is not None
    number = min(number, int(ctx.further), 1 if shared else number)
    if not number:
        return model
    first = len(spec.layers) if layer is None else 0
    described = replace(spec.names, layer=layer or spec.names.layer)
    own = own or spec.layers[-blocks:]
    own = [*own, *own[-blocks:] * number][: number * blocks]
    layers = (*spec.layers[:first], *own)
    if ctx.stage.is_last:
        whole, ends = replace(spec, names=described), range(first + blocks, len(layers) + 1, blocks)
        heads = [
            FurtherLayer(replace(whole, layers=layers[:end]), ctx, model, end - blocks, names)
            for end in ends
        ]
        model.draft_head, heads[0].following = heads[0], heads[1:]
    else:
        prefixes = [described.layer.format(at) for at in range(first, len(layers))]
        prefixes += [] if names.beside is None else [names.beside]
        ctx.weights.elsewhere(f"^{re.escape(prefix)}" for prefix in prefixes)
    return model
