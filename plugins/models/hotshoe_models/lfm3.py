"""LFM3: short convolutions and attention, with and without a window, between norms on both sides;
a gate for each head.

Defaults are those of transformers' Lfm3Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.convolutions import conv_block
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.lfm2 import CONV, SHAPE
from hotshoe_models.lfm2 import NAMES as LFM2_NAMES
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    optional_size,
    refuse,
    with_defaults,
    with_rope,
)

DEFAULTS = {
    **SHAPE,
    "vocab_size": 128000,
    "hidden_size": 2048,
    "intermediate_size": 7680,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "conv_L_cache": 7,
    "sliding_window": 256,
    "use_sandwich_norm": True,
    "use_attention_gate": True,
    "attention_bias": False,
}
THETA = 1_000_000.0
ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "rope_theta": THETA, "partial_rotary_factor": 0.5},
}
#: The kinds of layers by their index in a file that does not list them, but for the first.
PATTERN = (SLIDING, CONV, FULL, CONV)
NAMES = replace(LFM2_NAMES, o="self_attn.o_proj", qk_norm=("self_attn.q_norm", "self_attn.k_norm"))


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Lfm3ForCausalLM."""
    config = with_rope(with_defaults(config, {**DEFAULTS, "hidden_act": "silu"}), ROPE)
    known = (FULL, SLIDING, CONV)
    types = layer_types(config, lambda i: PATTERN[i % 4] if i else CONV, known)
    window = optional_size(config, "sliding_window")
    attending = [FULL if kind == CONV else kind for kind in types]
    described = layer_specs(config, ctx, attending, window, default_theta=THETA)
    layers = tuple(
        replace(layer, mixer=CONV, rotation=None, window=None) if kind == CONV else layer
        for layer, kind in zip(described, types, strict=True)
    )
    gated, bias = flag(config, "use_attention_gate"), flag(config, "attention_bias")
    if gated and bias:
        raise refuse(config, "attention_bias", "has gates, which have no biases")
    names = replace(NAMES, gate="self_attn.gate_proj", head_gates=True) if gated else NAMES
    if flag(config, "use_sandwich_norm"):
        behind = {"post_attention_norm": "post_operator_norm", "post_mlp_norm": "post_ffn_norm"}
        names = replace(names, **behind)
    ctx.weights.rename(r"\.g_proj\.", ".gate_proj.")  # as transformers calls it
    spec = decoder_spec(
        config,
        layers,
        norm_eps=number(config, "norm_eps"),
        conv=conv_block(config, ctx),
        gated_attention=gated,
        qkv_bias=bias,
        o_bias=bias,
        names=names,
    )
    return DenseDecoder(spec, ctx)
