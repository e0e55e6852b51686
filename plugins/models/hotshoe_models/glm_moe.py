"""GLM-4.5 to 4.7 (MoE), dots.llm1, Solar Open: routers in DeepSeek's manner over attention in
Qwen's, or in Llama's.

Layers for the prediction of several tokens are not used. Defaults are those of transformers'
Glm4MoeConfig, Dots1Config and SolarOpenConfig.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import DEEPSEEK, FurtherNames, add_further
from hotshoe_models.mixtures import grouped_router, mixture, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    unused_layers,
)

SHAPE = {
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "head_dim": None,
    "attention_bias": False,
    "routed_scaling_factor": 1.0,
    "n_routed_experts": None,
    "n_group": 1,
    "topk_group": 1,
    "num_nextn_predict_layers": 0,
}
GLM_DEFAULTS = {
    **SHAPE,
    "vocab_size": 151552,
    "hidden_size": 4096,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "partial_rotary_factor": 0.5,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "use_qk_norm": False,
}
#: What Solar Open has none of: layers without experts, norms of q and k, further layers.
SOLAR_LACKS = {
    "intermediate_size",
    "first_k_dense_replace",
    "use_qk_norm",
    "num_nextn_predict_layers",
    "partial_rotary_factor",
}
DOTS_DEFAULTS = {
    **SHAPE,
    "vocab_size": 152064,
    "hidden_size": 4608,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": None,
    "n_shared_experts": None,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "sliding_window": 4096,
    "max_window_layers": 62,
    "layer_types": None,
}
SOLAR_DEFAULTS = {
    **{key: GLM_DEFAULTS[key] for key in GLM_DEFAULTS if key not in SOLAR_LACKS},
    "vocab_size": 196608,
    "moe_intermediate_size": 1280,
    "num_hidden_layers": 48,
    "num_attention_heads": 64,
    "head_dim": 128,
}
SOLAR_THETA = 1_000_000.0


def build_glm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Glm4MoeForCausalLM."""
    config = with_expert_defaults(config, GLM_DEFAULTS)
    layers = layer_specs(config, ctx, partial_rotary=True)
    names = {"names": QWEN3_NAMES} if flag(config, "use_qk_norm") else {}
    return moe_decoder(config, ctx, layers, **names)


def build_dots(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Dots1ForCausalLM."""
    config = with_expert_defaults(config, DOTS_DEFAULTS)
    window, first = optional_size(config, "sliding_window"), count(config, "max_window_layers")
    types = layer_types(config, lambda i: SLIDING if window is not None and i >= first else FULL)
    bias = flag(config, "attention_bias")
    layers = layer_specs(config, ctx, types, window)
    return moe_decoder(config, ctx, layers, o_bias=bias, names=QWEN3_NAMES)


def build_solar(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SolarOpenForCausalLM, all of whose layers have experts."""
    every = {"intermediate_size": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
    config = with_expert_defaults(config, SOLAR_DEFAULTS)
    config = replace(config, values={**config.values, **every})
    layers = layer_specs(config, ctx, partial_rotary=True, default_theta=SOLAR_THETA)
    return moe_decoder(config, ctx, layers)


def moe_decoder(
    config: ModelConfig,
    ctx: BuildContext,
    layers: tuple[LayerSpec, ...],
    further: FurtherNames = DEEPSEEK,
    **differences: Any,
) -> DenseDecoder:
    """Build a decoder of these layers, of which those behind the first dense ones have experts.

    Args:
        config, ctx, layers: Of the model.
        further: What the layer has that predicts further tokens.
        differences: Of the specification.
    """
    shared = 0 if config.get("n_shared_experts") is None else count(config, "n_shared_experts")
    shared *= config.size("moe_intermediate_size")
    router = grouped_router(config)
    experts = mixture(config, router, experts="n_routed_experts", shared_size=shared)
    dense = count(config, "first_k_dense_replace")
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config, with_experts(layers, experts, lambda i: i >= dense), qkv_bias=bias, **differences
    )
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    return add_further(DenseDecoder(spec, ctx), spec, ctx, spec.further_layers, further)
