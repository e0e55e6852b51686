"""Phi-3.5-MoE: Mixtral's shape with layer norms, biases and a sparse mixer as router.

Defaults are those of transformers' PhimoeConfig.
"""

from collections.abc import Mapping
from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtral import DEFAULT_THETA, NAMES, STACKED
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
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
)

DEFAULTS = {
    "vocab_size": 32064,
    "hidden_size": 4096,
    "intermediate_size": 6400,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 16,
    "router_jitter_noise": 0.01,
    "attention_bias": False,
    "lm_head_bias": False,
}
#: Of the rotation, or beside it: where texts begin to be long ones.
ORIGINAL = "original_max_position_embeddings"


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PhimoeForCausalLM."""
    config = _with_scale(with_expert_defaults(config, DEFAULTS), ctx.max_model_len)
    if config.size("num_experts_per_tok") != 2:
        raise refuse(config, "num_experts_per_tok", "chooses two experts")
    window = optional_size(config, "sliding_window")
    types = layer_types(config, lambda i: FULL if window is None else SLIDING)
    layers = layer_specs(config, ctx, types, window, default_theta=DEFAULT_THETA)
    router = RouterSpec("sparsemixer", jitter=number(config, "router_jitter_noise"))
    keys = {"experts": "num_local_experts", "size": "intermediate_size"}
    experts = mixture(config, router, names=NAMES, **keys)
    ctx.weights.rename(*STACKED)
    ctx.weights.rename(r"\.mlp\.router\.", ".block_sparse_moe.gate.")
    biased = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        with_experts(layers, experts, lambda i: True),
        norm="layer",
        qkv_bias=biased,
        o_bias=biased,
        lm_head_bias=flag(config, "lm_head_bias"),
    )
    return DenseDecoder(spec, ctx)


def _with_scale(config: ModelConfig, max_model_len: int) -> ModelConfig:
    """Give scaled rotations the factor on q and k that the file names for short and long texts."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    rope = config.get(key)
    if not isinstance(rope, Mapping) or "long_mscale" not in rope:
        return config
    rope = {**rope, ORIGINAL: config.get(ORIGINAL, rope.get(ORIGINAL))}
    within = replace(config, values=rope)
    chosen = "long_mscale" if max_model_len > within.size(ORIGINAL) else "short_mscale"
    factors = {name: number(within, name) for name in ("short_mscale", "long_mscale")}
    scaled = {**rope, "attention_factor": factors[chosen]}
    return replace(config, values={**config.values, key: scaled})
