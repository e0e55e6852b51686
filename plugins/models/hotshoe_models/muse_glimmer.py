"""Muse Glimmer: gated attention of normed q and k, norms around each block and one of embeddings.

Some layers see all tokens and do not rotate. Defaults are those of transformers'
MuseGlimmerTextConfig.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    optional_number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 6656,
    "intermediate_size": 19968,
    "num_hidden_layers": 52,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_activation": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "post_norm_eps": 1e-8,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "layer_rope_theta": None,
    "attention_bias": False,
    "sliding_window": 2048,
    "layer_types": None,
    "final_logit_softcapping": 20.0,
    "qk_scale_factor": 3.87,
    "output_multiplier": 0.19611613513818404,
}
#: Of layers, counted from the last, one that sees all tokens.
EVERY = 4
NAMES = WeightNames(
    embedding_norm="model.embed_norm",
    gate="self_attn.gate_proj",
    post_attention_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of MuseGlimmerForConditionalGeneration."""
    config = with_defaults(config, DEFAULTS)
    if flag(config, "attention_bias"):
        raise refuse(config, "attention_bias", "has no biases")
    spec = decoder_spec(
        config,
        muse_layers(config, ctx),
        activation=activation(config, "hidden_activation"),
        attention_scale=number(config, "qk_scale_factor") * config.size("head_dim") ** -0.5,
        gated_attention=True,
        norm_offset=1.0,
        final_norm_offset=0.0,
        post_norm_eps=number(config, "post_norm_eps"),
        unit_embedding=True,
        logits_divisor=1.0 / number(config, "output_multiplier"),
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def muse_layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe the layers; those whose base is 0 do not rotate, as every fourth where none says."""
    count, key = config.size("num_hidden_layers"), "layer_rope_theta"
    whole = [(count - 1 - i) % EVERY == 0 for i in range(count)]
    types = layer_types(config, lambda i: FULL if whole[i] else SLIDING)
    layers = layer_specs(config, ctx, types, optional_size(config, "sliding_window"))
    bases = config.get(key) or [float(not full) for full in whole]
    if not isinstance(bases, list) or len(bases) != count:
        raise refuse(config, key, f"needs a base, or 0, for each of {count} layers")
    if len({base for base in bases if base}) > 1:
        raise refuse(config, key, "rotates by one base, or not at all")
    return tuple(
        replace(layer, unit_qk=True, rotation=layer.rotation if base else None)
        for layer, base in zip(layers, bases, strict=True)
    )
