"""EAGLE and EAGLE-3: heads of one layer that were trained beside a model, for its drafts.

Both join the embedding of a token with what the model made of the token before. EAGLE takes the
final hidden state, and has no norms around its layer. EAGLE-3 takes the states in front of three
layers of the model, and attends with embedding and state side by side. It has an output matrix of
its own, over the most frequent tokens alone.

Sources: Li et al. 2024, arXiv:2401.15077, and 2025, arXiv:2503.01840, with the layout of the
checkpoints published beside them; for EAGLE-3 that of SpecForge's and of speculators' files, too,
with the norms of EAGLE 3.1. `eagle_forms` reads config.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext, ForwardBatch, Logits
from hotshoe.models import ModelConfig
from hotshoe.models.base import GENERATE, DraftHead
from hotshoe.types.trees import NAME
from hotshoe_models.decoder import DenseDecoder, Layer, build_rotaries
from hotshoe_models.eagle_forms import chosen_layers, is_eagle3, layer_family, merged
from hotshoe_models.heads import Embedded, Joined, check_sizes, check_verifier, plain_decoder
from hotshoe_models.llama import DEFAULTS, llama_spec
from hotshoe_models.norms import plain_norm
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.spec import DecoderSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    refuse,
    with_defaults,
)

LAYER = "midlayer."
NAMES = WeightNames(embedding="embed_tokens", final_norm="norm", layer=LAYER, input_norm=None)
INTEGERS = frozenset({torch.int32, torch.int64})


class EagleHead:
    """See `hotshoe.models.base.DraftHead`.

    Args:
        spec: A decoder of one layer.
        ctx: With the head's weight table.
        model: Gives its output matrix, and its embedding where the head has none.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, model: DenseDecoder) -> None:
        before, size = len(ctx.cache_layers), spec.hidden_size
        self._model, self._embedded = model, Embedded(spec, ctx, model)
        self._join = Joined(ctx, "fc", 2 * size, size)
        # As in a stage that another one follows, there is no norm behind the layer.
        self._layer = _layer(replace(spec, layers=spec.layers * 2), ctx)
        self.cache_layers = ctx.cache_layers[before:]

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`."""
        joined = self._join(torch.cat([self._embedded(ids), hidden], 1))
        return cast("tuple[Tensor, Tensor]", self._layer(joined, joined, batch, batch.outputs_at))

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n] for hidden [n, hidden_size]."""
        return self._model.head(hidden, GENERATE).argmax(1)

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """See `hotshoe.models.base.LevelHead`."""
        return self._model.head(hidden, GENERATE).topk(count).indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Form:
    """The form of an EAGLE-3 head.

    Attributes:
        num_states: States of the model that the head takes for each token.
        num_drafted: Tokens that it can guess.
        normed_residual: The residual of its layer begins with the normed state.
        normed_join: One norm takes all states side by side, before they are joined.
        normed_states: Each state has a norm, before they are joined.
        passes_normed: The next draft reads the state that logits are made of.
    """

    num_states: int
    num_drafted: int
    normed_residual: bool = False
    normed_join: bool = False
    normed_states: bool = False
    passes_normed: bool = False


class Eagle3Head:
    """See `hotshoe.models.base.DraftHead`.

    Args:
        spec: A decoder of one layer.
        ctx: With the head's weight table.
        model: Gives its embedding where the head has none.
        form: Of the head.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, model: DenseDecoder, form: Eagle3Form
    ) -> None:
        before, self._size = len(ctx.cache_layers), spec.hidden_size
        self._embedded, self._form = Embedded(spec, ctx, model), form
        self._taken = model.hidden_size
        inputs, num_drafted = form.num_states * self._taken, form.num_drafted
        norms = {"input_norm": inputs} if form.normed_join else {}
        if form.normed_states:
            norms |= {f"fc_norm.{i}": self._taken for i in range(form.num_states)}
        self._norms = [
            plain_norm(replace(spec, hidden_size=size), ctx, name) for name, size in norms.items()
        ]
        self._join = Joined(ctx, "fc", inputs, self._size)
        self._embedding_norm = plain_norm(spec, ctx, f"{LAYER}input_layernorm")
        self._hidden_norm = plain_norm(spec, ctx, f"{LAYER}hidden_norm")
        [layer] = spec.layers
        self._layer = _layer(
            replace(spec, layers=(replace(layer, qkv_inputs=2 * self._size),)), ctx
        )
        self._lm_head = Logits(ctx, spec.names.lm_head, num_drafted, self._size)
        self._place, self._vocab_size = ctx.device, spec.vocab_size
        self._targets: Tensor | None = None
        ctx.weights.expect("d2t", (num_drafted,), self._take_targets, INTEGERS)
        if num_drafted == spec.vocab_size:
            ctx.weights.optional("d2t")
        self.cache_layers = ctx.cache_layers[before:]

    def _take_targets(self, offsets: Tensor) -> None:
        """Keep which token of the model each token of the head is; the file has the difference."""
        targets = torch.arange(len(offsets)) + offsets.cpu().long()
        if targets.min() < 0 or targets.max() >= self._vocab_size:
            raise CheckpointError(
                f"d2t names tokens from {targets.min()} to {targets.max()}, but token ids lie "
                f"below {self._vocab_size}; the head belongs to another model"
            )
        self._targets = targets.to(self._place)

    def forward(self, ids: Tensor, hidden: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """See `hotshoe.models.base.DraftHead`; the first columns of wide states are the final
        ones, which this head does not take."""
        if hidden.shape[1] != self._size:
            hidden = self._join(self._normed(hidden[:, self._taken :]))
        state = self._hidden_norm(hidden)
        beside = torch.cat([self._embedding_norm(self._embedded(ids)), state], 1)
        residual = state if self._form.normed_residual else hidden
        normed, passed = self._layer(beside, residual, batch, batch.outputs_at)
        assert isinstance(normed, Tensor)
        return (normed if self._form.passes_normed else passed), normed

    def _normed(self, states: Tensor) -> Tensor:
        """Norm the model's states [n, inputs] as the form says."""
        if not self._norms:
            return states.contiguous()
        parts = states.chunk(len(self._norms), 1)
        normed = zip(self._norms, parts, strict=True)
        return torch.cat([norm(part.contiguous()) for norm, part in normed], 1)

    def guess(self, hidden: Tensor) -> Tensor:
        """Return the likeliest tokens [n] for hidden [n, hidden_size]."""
        return self._tokens(self._lm_head(hidden).argmax(1))

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """See `hotshoe.models.base.LevelHead`."""
        return self._tokens(self._lm_head(hidden).topk(count).indices)

    def _tokens(self, found: Tensor) -> Tensor:
        """Return the model's tokens of those of the head."""
        return found if self._targets is None else self._targets[found]


class Watched:
    """A layer whose residual is kept before it is computed."""

    def __init__(self, layer: Layer, kept: list[Tensor]) -> None:
        self._layer, self._kept = layer, kept

    def __call__(
        self, hidden: Tensor, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> object:
        """See `Layer`."""
        self._kept.append(residual.clone())
        return self._layer(hidden, residual, batch, keep)


class TappedDecoder:
    """A decoder whose final states carry those in front of chosen layers as further columns.

    Args:
        model: Built; its layers are watched from now on.
        layers: The chosen ones, in rising order.
        own: The layers of this stage. Those before it hand on the states of theirs.
        draft_head: What reads them; None before the last stage.

    Attributes:
        tapped: The chosen layers.
        entering_size: Columns of what the stage before hands on.
    """

    def __init__(
        self, model: DenseDecoder, layers: Sequence[int], own: range, draft_head: DraftHead | None
    ) -> None:
        self.entering_size = model.hidden_size * (1 + sum(i < own.start for i in layers))
        self.vocab_size, self.hidden_size = model.vocab_size, model.hidden_size
        self.tasks, self.draft_head = model.tasks, draft_head
        self.embed, self.scale_embeddings = model.embed, model.scale_embeddings
        self._model, self.tapped = model, layers
        self._kept: list[Tensor] = []
        for i in layers:
            if i in own:
                at = i - own.start
                model.layers[at] = cast("Layer", Watched(model.layers[at], self._kept))

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return [num_tokens, hidden_size * (1 + number of layers so far)]."""
        self._kept.clear()
        size, wanted = self.hidden_size, batch.outputs_at
        found = self._model.forward(hidden[:, :size].contiguous(), batch)
        if wanted is not None:  # the head reads no final states
            found = found.new_zeros(len(hidden), size).index_copy_(0, wanted, found)
        found = torch.cat([found, hidden[:, size:], *self._kept], 1)
        self._kept.clear()
        return found

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Map the final states among the columns to a task's result."""
        return self._model.head(hidden[:, : self.hidden_size].contiguous(), task)


def build_eagle(
    config: ModelConfig, ctx: BuildContext, model: object, target: ModelConfig
) -> DenseDecoder:
    """Give a model an EAGLE head."""
    model = plain_decoder(model, target)
    if is_eagle3(config):
        raise ConfigError("this is a head of EAGLE-3; use method eagle3")
    if config.get("speculators_model_type") is not None:
        raise refuse(config, "speculators_model_type", "reads EAGLE heads as they were published")
    ctx.weights.rename(r"^layers\.0\.", LAYER)
    ctx.weights.ignore([r"^lm_head\."])
    spec = _spec(config, ctx, model, target)
    if ctx.stage.is_last:
        model.draft_head = EagleHead(spec, ctx, model)
    return model


def build_eagle3(
    config: ModelConfig, ctx: BuildContext, model: object, target: ModelConfig
) -> TappedDecoder:
    """Give a model an EAGLE-3 head."""
    model = plain_decoder(model, target)
    family, config = layer_family(config), merged(config)
    spec = _spec(config, ctx, model, target, family)
    given = config.get("draft_vocab_size")
    drafted = spec.vocab_size if given is None else config.size("draft_vocab_size")
    if drafted > spec.vocab_size:
        raise refuse(config, "draft_vocab_size", f"guesses tokens of {spec.vocab_size}")
    most = 0 if ctx.tree is None else max(map(max, ctx.tree.paths))
    if most >= drafted:
        raise ConfigError(
            f"{NAME} has a node of choice {most}, but the head guesses {drafted} tokens; "
            "leave it out"
        )
    ctx.weights.rename(r"^(?:model\.)?layers\.0\.", LAYER)
    ctx.weights.ignore([r"^t2d$"])
    layers, own = chosen_layers(config, model.num_layers), ctx.own_layers
    form = Eagle3Form(
        num_states=len(layers),
        num_drafted=drafted,
        normed_residual=flag(config, "norm_before_residual"),
        normed_join=flag(config, "norm_before_fc"),
        normed_states=flag(config, "fc_norm"),
        passes_normed=flag(config, "norm_output"),
    )
    if form.normed_join and form.normed_states:
        raise refuse(
            config, "fc_norm", "has one kind of norm before fc, and norm_before_fc is true"
        )
    head = Eagle3Head(spec, ctx, model, form) if ctx.stage.is_last else None
    assert own is not None, "the model has taken its layers"
    if len(model.layers) < len(own):
        raise ConfigError(
            "an EAGLE-3 head reads states between layers, but one call computes all of them; "
            "use --kernel model_step=composed"
        )
    return TappedDecoder(model, layers, own, head)


def _spec(
    config: ModelConfig,
    ctx: BuildContext,
    model: DenseDecoder,
    target: ModelConfig,
    family: str = "llama",
) -> DecoderSpec:
    """Describe a head's layer, of a family.

    Raises:
        ConfigError: The head was trained for another model.
        CheckpointError: It has several layers, or its configuration is malformed.
    """
    check_verifier(config, target)
    config = with_defaults(config, {**DEFAULTS, "num_hidden_layers": 1})
    taken = "hidden_size" if config.get("target_hidden_size") is None else "target_hidden_size"
    check_sizes(config, model, (taken, "vocab_size"))
    if config.size("num_hidden_layers") != 1:
        raise refuse(config, "num_hidden_layers", "has heads of one layer only")
    types, window = layer_types(config, lambda i: FULL), optional_size(config, "sliding_window")
    names = NAMES if family == "llama" else replace(NAMES, qk_norm=QWEN3_NAMES.qk_norm)
    spec = llama_spec(config, layer_specs(config, ctx, types, window), names=names)
    ctx.weights.rename(r"^model\.", "")
    ctx.weights.ignore(spec.names.unused)
    return spec


def _layer(spec: DecoderSpec, ctx: BuildContext) -> Layer:
    """Build the head's layer, the first of the specification."""
    layer = Layer(spec, ctx, 0, build_rotaries(ctx, spec.layers[:1]), {})
    layer.join(spec, ctx, 0, None)
    return layer
