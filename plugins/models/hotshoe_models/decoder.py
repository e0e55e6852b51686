"""The one dense decoder: built from a `DecoderSpec`, asking slots for every operation.

Knows no family and no hardware. A forward pass is a loop over layers of bound calls; residual
additions are fused with the norm that follows them, across layers too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import BuildContext, Embedding, ForwardBatch, Logits, Rotary, Rotation, learned
from hotshoe.models.base import CLASSIFY, EMBED, GENERATE, TOKEN_CLASSIFY, DraftHead
from hotshoe.slots import Quantized
from hotshoe.types.pooling import PoolingKind
from hotshoe_models.mixers import Mixer
from hotshoe_models.mlps import MLP, build_mlp
from hotshoe_models.norms import AddNorm, Norm, build_add_norm, build_norm, plain_norm, post_norm
from hotshoe_models.shared import build_mixer
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.whole import Whole, norm_before, under, whole_layers


class DenseDecoder:
    """See `hotshoe.models.base.Model`.

    Args:
        spec: The architecture.
        ctx: The build context, which collects the wanted weights and the attention layers.

    Attributes:
        draft_head: See `hotshoe.models.base.DraftingModel`; builders of families set it.
        classify, class_pooling, step_token: What makes logits of classes, the state that it reads,
            and the token that ends steps. Builders set them.
        layers: Of this stage, or one that is the whole step; heads may put something before one.
        num_layers: Those of all stages.
    """

    draft_head: DraftHead | None = None
    classify: Callable[[Tensor], Tensor] | None = None
    class_pooling: PoolingKind = "last"
    step_token: int | None = None
    layers: list[Layer | Whole]

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        names, stage = spec.names, ctx.stage
        own = ctx.take_layers(len(spec.layers))
        self.vocab_size, self.hidden_size = spec.vocab_size, spec.hidden_size
        self.tasks = frozenset({GENERATE, EMBED} if spec.generates else {EMBED})
        self._embedding_scale = spec.embedding_scale
        self.num_layers = len(spec.layers)
        sizes = spec.table_size or spec.vocab_size, spec.hidden_size, spec.embedding_scale
        self._make_embedding = partial(Embedding, ctx, names.embedding, *sizes)
        self._embed = self._make_embedding(adapts=True) if stage.is_first else None
        self._positions = _positions(spec, ctx) if stage.is_first else None
        named = names.embedding_norm if stage.is_first else None
        self._embedding_norm = None if named is None else plain_norm(spec, ctx, named)
        rotaries = build_rotaries(ctx, spec.layers[own.start : own.stop])
        self._build_layers(spec, ctx, own, rotaries)
        if spec.generates and stage.is_last:
            self._lm_head = Logits(
                ctx,
                names.embedding if spec.tied else names.lm_head,
                spec.vocab_size,
                spec.hidden_size,
                quantize=spec.quantizes("lm_head", ctx.format),
                bias=spec.lm_head_bias,
                adapted=names.lm_head,
            )
        self._logits_divisor = spec.logits_divisor
        self._softcap = spec.logits_softcap
        ctx.weights.elsewhere(_elsewhere(spec, ctx, own))
        ctx.weights.ignore(names.unused)
        behind = range(len(spec.layers), len(spec.layers) + spec.further_layers)
        further = [rf"^{re.escape(names.layer.format(i))}" for i in behind]
        ctx.weights.ignore(further, "layers that predict further tokens")
        ctx.weights.rename(*names.bare)
        if spec.tied or not spec.generates:  # some checkpoints store the tied matrix a second time
            ctx.weights.ignore([rf"^{re.escape(names.lm_head)}\.weight$"])

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers and the norms between them."""
        mixers: dict[int, Mixer] = {}
        self.layers = [
            Layer(spec.sized(i), ctx, i, rotaries, mixers) if whole is None else whole
            for i, whole in whole_layers(spec, ctx, own, rotaries)
        ]
        last = range(own.stop - len(self.layers), own.stop)
        for i, layer, behind in zip(last, self.layers, [*self.layers[1:], None], strict=True):
            layer.join(spec, ctx, i, behind)
        name, quant = norm_before(spec, own.start, self.layers[0])
        self._first_norm = build_norm(spec, ctx, name, quant)

    def keep_embedding(self) -> None:
        """Have `embed` in this stage, too, for a head."""
        if self._embed is None:
            self._embed = self._make_embedding()

    def embed(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size] for ids [num_tokens] int32."""
        assert self._embed is not None, "the first stage embeds"
        return self._embed(ids)

    def scale_embeddings(self, rows: Tensor) -> Tensor:
        """Scale rows [n, hidden_size] of the table as `embed` does."""
        return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the final normed hidden states of the tokens at `batch.outputs_at`.

        Before the last stage they are the residual, from which the next stage goes on.
        """
        residual = hidden if self._positions is None else hidden + self._positions(batch)
        if self._embedding_norm is not None:
            residual = self._embedding_norm(residual)
        normed = residual if self._first_norm is None else self._first_norm(residual)
        *inner, last = self.layers
        for layer in inner:
            normed, residual = layer(normed, residual, batch, None)
        return last(normed, residual, batch, batch.outputs_at)[0]

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Return [n, vocab_size] float32, the hidden states themselves, or [n, classes]."""
        if task == EMBED:
            return hidden.float()
        if task in (CLASSIFY, TOKEN_CLASSIFY):
            assert self.classify is not None, "a task of models with classes"
            return self.classify(hidden)
        logits = self._lm_head(hidden)
        if self._logits_divisor != 1.0:
            logits.div_(self._logits_divisor)
        if self._softcap is not None:
            torch.tanh_(logits.div_(self._softcap)).mul_(self._softcap)
        return logits


class Layer:
    """Mixer and MLP; ends with the norm that comes next, the next layer's or the final one.

    That of a stage's last layer belongs to the next stage, which gets the residual alone.

    Attributes:
        mixer, mlp, input_quant: Its blocks, and what the norm before it may quantize to.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: dict[Rotation, Rotary],
        mixers: dict[int, Mixer],
    ) -> None:
        names, prefix = spec.names, spec.names.layer.format(i)
        self.mixer = mixers[i] = build_mixer(spec, ctx, i, rotaries, mixers)
        self.mlp: MLP | None = build_mlp(spec, ctx, i) if spec.layers[i].mlp else None
        name = under(prefix, names.mlp_norm)
        self._own_norm: Norm | None = None
        self._mlp_norm: AddNorm | None = None
        self.input_quant = self.mixer.input_quant
        self._parallel = spec.parallel
        if spec.parallel:
            self._own_norm, self.input_quant = build_norm(spec, ctx, name), None
        elif self.mlp is not None:
            quant = self.mlp.input_quant
            self._mlp_norm = build_add_norm(spec, ctx, name, quant, spec.residual_scale)
        self._post_attention_norm = post_norm(spec, ctx, under(prefix, names.post_attention_norm))
        self._post_mlp_norm = post_norm(spec, ctx, under(prefix, names.post_mlp_norm))

    def join(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, behind: Layer | Whole | None
    ) -> None:
        """Build the norm in front of the layer behind this one; of the last one, the final norm.

        The last layer of a stage has none where another stage follows, and none has one in front
        of a whole layer, which norms by itself.
        """
        self._scale = spec.residual_scale * (1.0 if self.mlp is None else spec.mlp_scale)
        self._next_norm: AddNorm | None = None
        if isinstance(behind, Layer):
            name, quant = norm_before(spec, i + 1, behind)
            self._next_norm = build_add_norm(spec, ctx, name, quant, self._scale)
        elif behind is None and i + 1 == len(spec.layers):
            self._next_norm = build_add_norm(spec, ctx, spec.names.final_norm, None, self._scale)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Map (normed, residual), each [num_tokens, hidden_size], to the next layer's.

        Behind the mixer, only the tokens at `keep` go on (None: all): [s, hidden_size].
        """
        out = self.mixer(hidden, batch, keep)
        if keep is not None:
            residual = residual[keep]
        if self._post_attention_norm is not None:
            out = self._post_attention_norm(out)
        if self._parallel:
            out = out + self._beside(hidden, residual, keep)
        elif self.mlp is not None:
            hidden, residual = self._mlp_norm(out, residual)
            out = self.mlp(hidden)
        if self._post_mlp_norm is not None:
            out = self._post_mlp_norm(out)
        if self._next_norm is None:
            if self._scale != 1.0:
                out.mul_(self._scale)
            passed = torch.add(residual, out)
            return passed, passed
        return self._next_norm(out, residual)

    def _beside(self, hidden: Tensor, residual: Tensor, keep: Tensor | None) -> Tensor:
        """Return what the MLP makes of the residual that attention started from."""
        if self._own_norm is not None:
            return self.mlp(self._own_norm(residual))
        return self.mlp(hidden if keep is None else hidden[keep])


def build_rotaries(ctx: BuildContext, layers: Sequence[LayerSpec]) -> dict[Rotation, Rotary]:
    """Build the rotations of layers, each once."""
    given = (ctx.max_model_len, ctx.device, ctx.selector.facts.memory_bytes)
    return {
        rotation: learned(ctx, rotation, Rotary.build(rotation, *given))
        for rotation in {layer.rotation for layer in layers}
        if rotation is not None
    }


def _elsewhere(spec: DecoderSpec, ctx: BuildContext, own: range) -> list[str]:
    """Return patterns of the weights that other stages hold."""
    names, stage = spec.names, ctx.stage
    others = [names.layer.format(i) for i in range(len(spec.layers)) if i not in own]
    if not stage.is_first:
        first = (names.embedding, names.positions, names.embedding_norm)
        others += [f"{name}." for name in first if name is not None]
    others += [] if stage.is_last else [f"{names.final_norm}.", f"{names.lm_head}."]
    return [f"^{re.escape(prefix)}" for prefix in others]


def _positions(spec: DecoderSpec, ctx: BuildContext) -> Callable[[ForwardBatch], Tensor] | None:
    """Build the gather of positions' vectors, where the model has them.

    Raises:
        ConfigError: Sequences may be longer than there are positions.
    """
    name, count, offset = spec.names.positions, spec.num_positions, spec.position_offset
    if name is None:
        return None
    if ctx.max_model_len > count:
        raise ConfigError(
            f"max_model_len {ctx.max_model_len} exceeds the {count} positions that the model has "
            "vectors for; lower --max-model-len"
        )
    table = Embedding(ctx, name, offset + count, spec.hidden_size)
    return lambda batch: table(batch.positions + offset if offset else batch.positions)
