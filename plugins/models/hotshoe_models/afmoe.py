"""AFMoE (Arcee Trinity): gated attention, norms around each block, experts behind sigmoids.

Layers without a window do not rotate q and k. Defaults are those of transformers' AfmoeConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    optional_size,
    refuse,
)

DEFAULTS = {
    "vocab_size": 200192,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 32,
    "num_dense_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": None,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "num_experts": 64,
    "num_experts_per_tok": 6,
    "num_shared_experts": 2,
    "route_scale": 1.0,
    "global_attn_every_n_layers": 4,
    "sliding_window": 1024,
    "layer_types": None,
    "mup_enabled": False,
    "attention_bias": False,
}
#: What files say besides, and what alone is served of it.
FIXED = {
    "attention_bias": False,
    "score_func": "sigmoid",
    "route_norm": True,
    "n_group": 1,
    "topk_group": 1,
}
NAMES = WeightNames(
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    gate="self_attn.gate_proj",
    post_attention_norm="post_attention_layernorm",
    mlp_norm="pre_mlp_layernorm",
    post_mlp_norm="post_mlp_layernorm",
)
EXPERTS = MoeNames(router="mlp.router.gate", correction="mlp.expert_bias")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build AfmoeForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    for key, value in FIXED.items():
        if config.get(key, value) != value:
            raise refuse(config, key, f"is served with {value!r} alone")
    every, dense = config.size("global_attn_every_n_layers"), count(config, "num_dense_layers")
    types = layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)
    layers = tuple(
        layer if kind == SLIDING else replace(layer, rotation=None)
        for kind, layer in zip(
            types,
            layer_specs(config, ctx, types, optional_size(config, "sliding_window")),
            strict=True,
        )
    )
    experts = mixture(
        config,
        RouterSpec("sigmoid", True, number(config, "route_scale"), correction=True),
        shared_size=count(config, "num_shared_experts") * config.size("moe_intermediate_size"),
        names=EXPERTS,
    )
    spec = decoder_spec(
        config,
        with_experts(layers, experts, lambda i: i >= dense),
        embedding_scale=config.size("hidden_size") ** 0.5 if flag(config, "mup_enabled") else 1.0,
        gated_attention=True,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
