"""The one dense decoder: built from a `DecoderSpec`, asking slots for every operation.

Knows no family and no hardware. A forward pass is a loop over layers of bound calls; residual
additions are fused with the norm that follows them, across layers too.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from hotshoe.layers import (
    AddRMSNorm,
    BuildContext,
    Embedding,
    ForwardBatch,
    GatedMLP,
    Logits,
    Matrix,
    MoE,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.models.base import EMBED, GENERATE
from hotshoe.slots import Quantized, QuantSpec
from hotshoe_models.mixers import MIXERS, parts_of
from hotshoe_models.spec import DecoderSpec

#: Checkpoints that were saved without their output matrix have names without this prefix.
BARE_NAMES = (r"^(?=(embed_tokens|layers|norm)\.)", "model.")


class DenseDecoder:
    """See `hotshoe.models.base.Model`.

    Args:
        spec: The architecture.
        ctx: The build context, which collects the wanted weights and the attention layers.
    """

    def __init__(self, spec: DecoderSpec, ctx: BuildContext) -> None:
        names, stage = spec.names, ctx.stage
        own = ctx.take_layers(len(spec.layers))
        self.vocab_size, self.hidden_size = spec.vocab_size, spec.hidden_size
        self.tasks = frozenset({GENERATE, EMBED} if spec.generates else {EMBED})
        self._embedding_scale = spec.embedding_scale
        if stage.is_first:
            self._embed = Embedding(
                ctx, names.embedding, spec.vocab_size, spec.hidden_size, spec.embedding_scale
            )
        memory_bytes = ctx.selector.facts.memory_bytes
        rotaries = {
            rotation: Rotary.build(rotation, ctx.max_model_len, ctx.device, memory_bytes)
            for rotation in {layer.rotation for layer in spec.layers[own.start : own.stop]}
            if rotation is not None
        }
        self._layers = [_Layer(spec, ctx, i, rotaries) for i in own]
        for i, layer, behind in zip(own, self._layers, [*self._layers[1:], None], strict=True):
            layer.join(spec, ctx, i, behind)
        self._first_norm = None
        if names.input_norm is not None:
            first = names.layer.format(own.start) + names.input_norm
            quant = self._layers[0].input_quant
            self._first_norm = RMSNorm(
                ctx, first, spec.hidden_size, spec.norm_eps, spec.norm_offset, quant
            )
        if spec.generates and stage.is_last:
            self._lm_head = Logits(
                ctx,
                names.embedding if spec.tied else names.lm_head,
                spec.vocab_size,
                spec.hidden_size,
                quantize=spec.quantizes("lm_head", ctx.format),
            )
        self._logits_divisor = spec.logits_divisor
        self._softcap = spec.logits_softcap
        ctx.weights.elsewhere(_elsewhere(spec, ctx, own))
        ctx.weights.ignore(names.unused)
        behind = range(len(spec.layers), len(spec.layers) + spec.further_layers)
        further = [rf"^{re.escape(names.layer.format(i))}" for i in behind]
        ctx.weights.ignore(further, "layers that predict further tokens")
        ctx.weights.rename(*BARE_NAMES)
        if spec.tied or not spec.generates:  # some checkpoints store the tied matrix a second time
            ctx.weights.ignore([rf"^{re.escape(names.lm_head)}\.weight$"])

    def embed(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, hidden_size] for ids [num_tokens] int32."""
        return self._embed(ids)

    def scale_embeddings(self, rows: Tensor) -> Tensor:
        """Scale rows [n, hidden_size] of the table as `embed` does."""
        return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def forward(self, hidden: Tensor, batch: ForwardBatch) -> Tensor:
        """Return the final normed hidden states of the tokens at `batch.outputs_at`.

        Before the last stage they are the residual, from which the next stage goes on.
        """
        residual = hidden
        normed = residual if self._first_norm is None else self._first_norm(residual)
        *inner, last = self._layers
        for layer in inner:
            normed, residual = layer(normed, residual, batch, None)
        return last(normed, residual, batch, batch.outputs_at)[0]

    def head(self, hidden: Tensor, task: str) -> Tensor:
        """Return [n, vocab_size] float32, or the hidden states themselves."""
        if task == EMBED:
            return hidden.float()
        logits = self._lm_head(hidden)
        if self._logits_divisor != 1.0:
            logits.div_(self._logits_divisor)
        if self._softcap is not None:
            torch.tanh_(logits.div_(self._softcap)).mul_(self._softcap)
        return logits


class _Layer:
    """Mixer and MLP; ends with the norm that comes next, the next layer's or the final one.

    That of a stage's last layer belongs to the next stage, which gets the residual alone.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: dict[Rotation, Rotary]
    ) -> None:
        names, size = spec.names, spec.hidden_size
        prefix = names.layer.format(i)

        def norm(name: str | None) -> RMSNorm | None:
            eps, offset = spec.norm_eps, spec.norm_offset
            return None if name is None else RMSNorm(ctx, prefix + name, size, eps, offset)

        self._mixer = MIXERS[spec.layers[i].mixer](spec, ctx, i, rotaries)
        self._post_attention_norm = norm(names.post_attention_norm)
        self._mlp: GatedMLP | MoE | None = None
        if spec.layers[i].mlp:
            self._mlp = _mlp(spec, ctx, i)
            name = None if names.mlp_norm is None else prefix + names.mlp_norm
            quant = self._mlp.input_quant
            self._mlp_norm = _add_norm(spec, ctx, name, quant, spec.residual_scale)
        self._post_mlp_norm = norm(names.post_mlp_norm)
        #: What the norm before this layer may quantize to.
        self.input_quant = self._mixer.input_quant

    def join(self, spec: DecoderSpec, ctx: BuildContext, i: int, behind: _Layer | None) -> None:
        """Build the norm in front of the layer behind this one; of the last one, the final norm.

        The last layer of a stage has none where another stage follows.
        """
        self._scale = spec.residual_scale * (1.0 if self._mlp is None else spec.mlp_scale)
        self._next_norm = None
        if behind is not None:
            norm = spec.names.input_norm
            name = None if norm is None else spec.names.layer.format(i + 1) + norm
            self._next_norm = _add_norm(spec, ctx, name, behind.input_quant, self._scale)
        elif i + 1 == len(spec.layers):
            self._next_norm = _add_norm(spec, ctx, spec.names.final_norm, None, self._scale)

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """Map (normed, residual), each [num_tokens, hidden_size], to the next layer's.

        Behind the mixer, only the tokens at `keep` go on (None: all): [s, hidden_size].
        """
        out = self._mixer(hidden, batch, keep)
        if keep is not None:
            residual = residual[keep]
        if self._post_attention_norm is not None:
            out = self._post_attention_norm(out)
        if self._mlp is not None:
            hidden, residual = self._mlp_norm(out, residual)
            out = self._mlp(hidden)
        if self._post_mlp_norm is not None:
            out = self._post_mlp_norm(out)
        if self._next_norm is None:
            if self._scale != 1.0:
                out.mul_(self._scale)
            passed = torch.add(residual, out)
            return passed, passed
        return self._next_norm(out, residual)


class _Add:
    """residual += scale * x, which the next block takes as it is."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum twice; it overwrites the residual."""
        residual.add_(x if self._scale == 1.0 else x.mul_(self._scale))
        return residual, residual


def _elsewhere(spec: DecoderSpec, ctx: BuildContext, own: range) -> list[str]:
    """Return patterns of the weights that other stages hold."""
    names, stage = spec.names, ctx.stage
    others = [names.layer.format(i) for i in range(len(spec.layers)) if i not in own]
    others += [] if stage.is_first else [f"{names.embedding}."]
    others += [] if stage.is_last else [f"{names.final_norm}.", f"{names.lm_head}."]
    return [f"^{re.escape(prefix)}" for prefix in others]


def _add_norm(
    spec: DecoderSpec, ctx: BuildContext, name: str | None, quant: QuantSpec | None, scale: float
) -> AddRMSNorm | _Add:
    """Build the residual addition and the norm behind it, if there is one."""
    if name is None:
        return _Add(scale)
    eps, offset = spec.norm_eps, spec.norm_offset
    return AddRMSNorm(ctx, name, spec.hidden_size, eps, offset, scale, quant)


def _mlp(spec: DecoderSpec, ctx: BuildContext, i: int) -> GatedMLP | MoE:
    """Build a layer's MLP, divided among the ranks: gate_up by outputs, down by inputs; or experts
    in its place."""
    names, size, width = spec.names, spec.hidden_size, spec.intermediate_size
    prefix, mixture = names.layer.format(i), spec.layers[i].mixture
    if mixture is not None:
        return MoE(ctx, prefix, mixture, quantize=spec.quantizes("experts", ctx.format))
    what, channels = "channels between MLP matrices", Section(width)
    return GatedMLP(
        ctx,
        Matrix(
            ctx,
            parts_of(prefix, names.gate_up, [width, width]),
            size,
            bias=spec.mlp_bias,
            quantize=spec.quantizes("gate_up", ctx.format),
            outputs=ctx.split(what, channels, channels),
        ),
        Matrix(
            ctx,
            [(prefix + names.down, size)],
            width,
            bias=spec.mlp_bias,
            quantize=spec.quantizes("down", ctx.format),
            inputs=ctx.split(what, channels),
        ),
        spec.activation,
        spec.gate_scale,
    )
