"""The mixer of a layer that reads another layer's cache, and how each mixer is built."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hotshoe.errors import ConfigError
from hotshoe.layers import (
    Attention,
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    Section,
    SharedAttention,
)
from hotshoe.slots import Quantized
from hotshoe_models.latent import LatentMixer
from hotshoe_models.mixers import MIXERS, AttentionMixer, Mixer, Rotaries
from hotshoe_models.packed import PackedMixer
from hotshoe_models.spec import DecoderSpec

#: Every mixer by its name: those of tokens that come one by one, and that of whole prompts.
KINDS = {**MIXERS, "packed": PackedMixer}


class SharedMixer:
    """Attention of this layer's queries over the cache of a layer before it."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries, source: Attention
    ) -> None:
        names, layer = spec.names, spec.layers[i]
        prefix, channels = names.layer.format(i), spec.num_heads * spec.head_dim
        heads = ctx.split("attention heads", Section(spec.num_heads, spec.head_dim))
        self._q = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + names.qkv[0], channels)],
                spec.hidden_size,
                bias=spec.qkv_bias,
                quantize=spec.quantizes("qkv", ctx.format),
                outputs=heads,
            ),
        )
        self._attention = SharedAttention(
            ctx,
            source,
            rotaries[layer.rotation] if layer.rotation is not None else None,
            None if names.qk_norm is None else prefix + names.qk_norm[0],
            spec.norm_eps,
            spec.norm_offset,
        )
        self._o = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + names.o, spec.hidden_size)],
                channels,
                bias=spec.o_bias,
                quantize=spec.quantizes("o", ctx.format),
                inputs=heads,
            ),
        )
        self.input_quant = self._q.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        out = self._attention(self._q(hidden), batch)
        return self._o(out if keep is None else out[keep])


def build_mixer(
    spec: DecoderSpec,
    ctx: BuildContext,
    i: int,
    rotaries: Rotaries,
    before: Mapping[int, Mixer],
) -> Mixer:
    """Build a layer's mixer.

    Args:
        before: Mixers of this stage's layers before it, by their numbers.

    Raises:
        ConfigError: It reads the cache of a layer of another stage.
    """
    source = spec.layers[i].shares
    if source is None:
        return KINDS[spec.layers[i].mixer](spec, ctx, i, rotaries)
    if source not in before:
        raise ConfigError(
            f"layer {i} reads the cache of layer {source}, which another stage holds; "
            "use a --pipeline-parallel-size of 1, and --tensor-parallel-size in its place"
        )
    mixer = before[source]
    if isinstance(mixer, LatentMixer):
        return LatentMixer(spec, ctx, i, rotaries, mixer.attention)
    assert isinstance(mixer, AttentionMixer)
    return SharedMixer(spec, ctx, i, rotaries, mixer.attention)
