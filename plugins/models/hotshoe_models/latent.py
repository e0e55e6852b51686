"""The mixer of latent attention: projections to q and to latents, attention, output projection.

Knows no family; sizes are in a `LatentSpec`, names are those that all families share.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    LatentAttention,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.layers.split import Split
from hotshoe.slots import MlaAttentionSpec, Quantized
from hotshoe_models.spec import DecoderSpec, LatentSpec

WHAT = "attention heads"


class LatentMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks share the latents, and divide the heads."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        latent, rotation = spec.latent, spec.layers[i].rotation
        assert latent is not None and rotation is not None
        prefix = spec.names.layer.format(i) + "self_attn."
        rows = Matrix(
            ctx,
            [(f"{prefix}kv_a_proj_with_mqa", latent.latent_dim + latent.rope_dim)],
            spec.hidden_size,
            bias=latent.bias,
            quantize=spec.quantizes("qkv", ctx.format),
        )
        self._q = _Queries(spec, ctx, latent, prefix)
        self._rows = Linear(ctx, rows)
        self._temperature = spec.layers[i].temperature
        self._attention = _attention(spec, ctx, latent, rotaries[rotation], prefix)
        self._o = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + "o_proj", spec.hidden_size)],
                spec.num_heads * latent.v_dim,
                bias=spec.o_bias,
                quantize=spec.quantizes("o", ctx.format),
                inputs=ctx.split(WHAT, Section(spec.num_heads, latent.v_dim)),
            ),
        )
        both = (self._q.input_quant, self._rows.input_quant)
        self.input_quant = both[0] if both[0] == both[1] else None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        q = self._q(hidden)
        if self._temperature is not None:
            q.mul_(self._temperature.of(batch.positions))
        out = self._attention(q, self._rows(hidden), batch)
        return self._o(out if keep is None else out[keep])


class _Queries:
    """q of the hidden states: one matrix, or two with a norm between."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, prefix: str
    ) -> None:
        width = latent.nope_dim + latent.rope_dim
        heads = ctx.split(WHAT, Section(spec.num_heads, width))
        quantize = spec.quantizes("qkv", ctx.format)

        def linear(name: str, rows: int, columns: int, bias: bool, outputs: Split | None) -> Linear:
            parts = [(prefix + name, rows)]
            return Linear(
                ctx, Matrix(ctx, parts, columns, bias=bias, quantize=quantize, outputs=outputs)
            )

        size, total = spec.hidden_size, spec.num_heads * width
        self._norm: RMSNorm | None = None
        if latent.q_dim is None:
            self._first = linear("q_proj", total, size, False, heads)
        else:
            self._first = linear("q_a_proj", latent.q_dim, size, latent.bias, None)
            self._second = linear("q_b_proj", total, latent.q_dim, False, heads)
            quant = self._second.input_quant
            name = prefix + "q_a_layernorm"
            self._norm = RMSNorm(ctx, name, latent.q_dim, latent.norm_eps, quant=quant)
        self.input_quant = self._first.input_quant

    def __call__(self, hidden: Tensor | Quantized) -> Tensor:
        """Return [num_tokens, num_heads * (nope_dim + rope_dim)], this rank's heads."""
        first = self._first(hidden)
        return first if self._norm is None else self._second(self._norm(first))


def _attention(
    spec: DecoderSpec, ctx: BuildContext, latent: LatentSpec, rotary: Rotary, prefix: str
) -> LatentAttention:
    return LatentAttention(
        ctx,
        MlaAttentionSpec(
            spec.num_heads,
            latent.latent_dim,
            latent.nope_dim,
            latent.rope_dim,
            latent.v_dim,
            ctx.dtype,
            ctx.kv_dtype,
            ctx.block_size,
            spec.attention_scale,
        ),
        rotary,
        f"{prefix}kv_b_proj",
        f"{prefix}kv_a_layernorm",
        latent.norm_eps,
    )
