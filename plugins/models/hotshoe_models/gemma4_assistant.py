"""The assistants of Gemma 4: heads that make drafts of the keys and values of their model.

A matrix joins the embedding of a token with what the model made of the token before. A few layers
of Gemma 4's follow, which have queries alone: each reads the cache of the model's last layer of its
kind that has one. Another matrix makes of the result what the next draft reads in place of the
model's state. All drafts of a chain stand at one position. Some assistants score the tokens of the
likeliest groups alone.

Source: transformers' Gemma4AssistantForCausalLM and SinglePositionMultiTokenCandidateGenerator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext, Embedding, ForwardBatch, Logits
from hotshoe.layers.attention import Attention
from hotshoe.layers.cache import CacheLayer
from hotshoe.models import ModelConfig
from hotshoe.slots import renewed
from hotshoe_models.decoder import DenseDecoder, build_rotaries
from hotshoe_models.gemma4 import DEFAULTS, UNIFIED_DEFAULTS, described, kinds
from hotshoe_models.gemma4_layers import Gemma4Decoder, Gemma4Layer
from hotshoe_models.heads import check_sizes
from hotshoe_models.mixers import AttentionMixer, Mixer
from hotshoe_models.per_layer import linear, norm
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import FULL, SLIDING, count, flag, refuse, refuse_stages, with_defaults

#: Under which the layers of an assistant know those that they read.
PLACES = {FULL: -1, SLIDING: -2}
TABLE = "model.embed_tokens"
GROUPS = {"num_centroids": 2048, "centroid_intermediate_top_k": 32}
INTEGERS = frozenset({torch.int32, torch.int64})


class Assistant:
    """See `hotshoe.models.base.ReadingHead`.

    Args:
        spec: Of its layers; `shares` names their sources by `PLACES`.
        ctx: With the head's weight table.
        model: Whose tokens it guesses.
        sources: The layers that it reads.
        guesses: What makes tokens of its last states.
    """

    cache_layers: Sequence[CacheLayer] = ()

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        model: Gemma4Decoder,
        sources: dict[int, Mixer],
        guesses: Guesses | ChosenGuesses,
    ) -> None:
        self.reads = [_attention(mixer) for mixer in sources.values()]
        size, width = spec.hidden_size, model.hidden_size
        self._model, self.guess, self._last = model, guesses, ctx.max_model_len - 1
        self._join = linear(ctx, "pre_projection", size, 2 * width)
        rotaries, mixers = build_rotaries(ctx, spec.layers), dict(sources)
        self._layers = [
            Gemma4Layer(spec.sized(i), ctx, i, rotaries, mixers) for i in range(len(spec.layers))
        ]
        self._norm = norm(spec, ctx, spec.names.final_norm)
        self._hand_on = linear(ctx, "post_projection", width, size)

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.ReadingHead`."""
        embedded = DenseDecoder.embed(self._model, ids)
        state = self._join(torch.cat([embedded, hidden], 1))
        # A query stands where its token does, behind the last one of the cache.
        positions = (batch.positions + 1).clamp_(max=self._last)
        batch = replace(batch, positions=positions, outputs_at=None)
        for layer in self._layers:
            state = layer(state, None, batch, None)
        found = self._norm(state)
        return self._hand_on(found), found


class Guesses:
    """The likeliest tokens of all."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        name = TABLE if spec.tied else spec.names.lm_head
        self._logits = Logits(ctx, name, spec.vocab_size, spec.hidden_size)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return tokens [n] for hidden [n, hidden_size]."""
        return self._logits(hidden).argmax(1)


class ChosenGuesses:
    """The likeliest tokens of those in the likeliest groups.

    Args:
        groups: How many there are, of equal sizes.
        chosen: How many are looked at.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, groups: int, chosen: int) -> None:
        name = TABLE if spec.tied else spec.names.lm_head
        self._rows = Embedding(ctx, name, spec.vocab_size, spec.hidden_size)
        self._groups = linear(ctx, "masked_embedding.centroids", groups, spec.hidden_size)
        self._shape, self._chosen, self._place = (groups, -1), chosen, ctx.device
        self._tokens = torch.empty(0)
        ctx.weight_bytes.append(lambda: self._tokens.nbytes)
        order = "masked_embedding.token_ordering"
        ctx.weights.expect(order, (spec.vocab_size,), self._take, INTEGERS)

    def _take(self, order: Tensor) -> None:
        if order.min() < 0 or order.max() >= len(order):
            raise CheckpointError(
                f"masked_embedding.token_ordering names tokens from {order.min()} to "
                f"{order.max()}, but token ids lie below {len(order)}"
            )
        tokens = order.to(self._place, torch.int64, copy=True).view(self._shape)
        self._tokens = renewed(self._tokens, tokens)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return tokens [n] for hidden [n, hidden_size]."""
        groups = self._groups(hidden).topk(self._chosen).indices
        tokens = self._tokens[groups].flatten(1)
        rows = self._rows(tokens.flatten().to(torch.int32)).view(*tokens.shape, -1)
        scores = torch.bmm(rows, hidden[:, :, None])[:, :, 0]
        return tokens.gather(1, scores.argmax(1, keepdim=True))[:, 0]


def build(
    config: ModelConfig, ctx: BuildContext, model: object, target: ModelConfig
) -> Gemma4Decoder:
    """Give a Gemma 4 its assistant.

    Raises:
        ConfigError: The model is no Gemma 4, or another one.
        CheckpointError: The assistant has layers with caches, or parts that are not described.
    """
    if not isinstance(model, Gemma4Decoder):
        raise ConfigError(f"an assistant of Gemma 4 makes no drafts for {target.architecture}")
    refuse_stages(ctx, "an assistant reads caches of several layers")
    unified = config.architecture.startswith("Gemma4Unified")
    defaults = UNIFIED_DEFAULTS if unified else DEFAULTS
    config = with_defaults(config, {**defaults, **GROUPS, "use_ordered_embeddings": False})
    check_sizes(config, model, ("backbone_hidden_size", "vocab_size"))
    for name in ("hidden_size_per_layer_input", "enable_moe_block", "use_double_wide_mlp"):
        if config.get(name) not in (None, 0, False):
            raise refuse(config, name, "has assistants of attention and MLPs alone")
    # What its layers do not have counts for nothing.
    plain = {"num_kv_shared_layers": 0, "attention_k_eq_v": False}
    config = replace(config, values={**config.values, **plain})
    spec = described(config, ctx)
    own = with_defaults(target, DEFAULTS)
    found = kinds(own)[: -count(own, "num_kv_shared_layers") or None]
    last = {PLACES[kind]: i for i, kind in enumerate(found)}
    if missing := sorted(set(kinds(config)) - set(found)):
        raise ConfigError(f"the model has no layers of {', '.join(missing)} that it could read")
    wanted = [PLACES[kind] for kind in kinds(config)]
    sources = {place: model.mixers[i] for place, i in last.items() if place in wanted}
    layers = zip(spec.layers, wanted, strict=True)
    spec = replace(spec, layers=tuple(replace(layer, shares=place) for layer, place in layers))
    _check_heads(spec, ctx, sources)
    if flag(config, "use_ordered_embeddings"):
        groups = {name: config.size(name) for name in GROUPS}
        total, chosen = groups.values()
        if spec.vocab_size % total or chosen > total:
            raise refuse(config, "num_centroids", f"has {spec.vocab_size} tokens in equal groups")
        guesses: Guesses | ChosenGuesses = ChosenGuesses(spec, ctx, total, chosen)
    else:
        guesses = Guesses(spec, ctx)
    ctx.weights.ignore([r"^lm_head\."] if spec.tied else [rf"^{TABLE}\."])
    model.draft_head = Assistant(spec, ctx, model, sources, guesses)
    return model


def _attention(mixer: Mixer) -> Attention:
    assert isinstance(mixer, AttentionMixer)
    return mixer.attention


def _check_heads(spec: DecoderSpec, ctx: BuildContext, sources: dict[int, Mixer]) -> None:
    """Compare heads with those of the layers that they read.

    Raises:
        ConfigError: They do not fit.
    """
    for i, layer in enumerate(spec.layers):
        assert layer.shares is not None
        own, source = spec.sized(i), _attention(sources[layer.shares]).spec
        heads = own.num_heads // ctx.size
        if own.head_dim != source.head_dim or heads % source.num_kv_heads:
            raise ConfigError(
                f"layer {i} of the assistant has {own.num_heads} heads of {own.head_dim} channels, "
                f"but the cache that it reads has {source.num_kv_heads} of {source.head_dim} on "
                "each rank; use the assistant of this model, and fewer ranks"
            )
