"""Laguna: gated attention with a number of query heads for each layer, and experts behind sigmoids.

Defaults are those of transformers' LagunaConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, Mixture, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
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
    with_rope,
)

DEFAULTS = {
    "vocab_size": 100352,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_attention_heads_per_layer": None,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "gating": True,
    "sliding_window": 512,
    "layer_types": None,
    "mlp_layer_types": None,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_routed_scaling_factor": 1.0,
    "moe_apply_router_weight_on_input": False,
    "moe_router_logit_softcapping": 0.0,
}
ROPE = {
    FULL: {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}
#: What `gating` may be, and whether there is a gate for each head.
GATES = {True: True, "per-head": True, "per-element": False}
NAMES = WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm"), gate="self_attn.g_proj")
EXPERTS = MoeNames(
    correction="mlp.experts.e_score_correction_bias",
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build LagunaForCausalLM."""
    config = with_rope(with_expert_defaults(config, DEFAULTS), ROPE)
    gating = config.get("gating")
    if not isinstance(gating, (bool, str)) or gating not in GATES:
        raise refuse(config, "gating", "has gates: true, per-head or per-element")
    layers = with_experts(_layers(config, ctx), _experts(config), sparse_types(config))
    ctx.weights.rename(r"\.shared_experts\.", ".shared_expert.")  # as transformers calls them
    ctx.weights.rename(r"\.mlp\.gate\.e_score_correction_bias$", f".{EXPERTS.correction}")
    if flag(config, "attention_bias"):
        raise refuse(config, "attention_bias", "has gates, which have no biases")
    spec = decoder_spec(
        config,
        layers,
        gated_attention=True,
        gate_activation="softplus",
        names=replace(NAMES, head_gates=GATES[gating]),
    )
    return DenseDecoder(spec, ctx)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    types, key = layer_types(config, lambda i: FULL), "num_attention_heads_per_layer"
    window = optional_size(config, "sliding_window")
    layers = layer_specs(config, ctx, types, window, partial_rotary=True)
    heads = config.get(key)
    if heads is None:
        return layers
    shared = config.size("num_key_value_heads", config.size("num_attention_heads"))
    fitting = isinstance(heads, list) and len(heads) == len(layers)
    if not fitting or any(type(n) is not int or n < 1 or n % shared for n in heads):
        why = f"needs a multiple of its {shared} kv heads for each of {len(layers)} layers"
        raise refuse(config, key, why)
    return tuple(replace(layer, num_heads=own) for layer, own in zip(layers, heads, strict=True))


def _experts(config: ModelConfig) -> Mixture:
    for key in ("moe_apply_router_weight_on_input", "moe_router_logit_softcapping"):
        if config.get(key):
            raise refuse(config, key, "is served without it")
    scale = number(config, "moe_routed_scaling_factor")
    return mixture(
        config,
        RouterSpec("sigmoid", renormalize=True, scale=scale, correction=True),
        shared_size=config.size("shared_expert_intermediate_size"),
        names=EXPERTS,
    )
