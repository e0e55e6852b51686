"""Sarvam 30B and 105B: GLM-4.5's shape with names of its own; DeepSeek V3's, q of hidden states.

Defaults are those of transformers' SarvamMoEConfig and SarvamMLAConfig.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import V3_DEFAULTS, build_v3
from hotshoe_models.further import LISTED
from hotshoe_models.glm_moe import GLM_DEFAULTS, moe_decoder
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.values import flag, layer_specs, rope_key, rope_of

DEFAULTS = {
    **GLM_DEFAULTS,
    "vocab_size": 262144,
    "intermediate_size": 8192,
    "num_hidden_layers": 19,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "partial_rotary_factor": 1.0,
    "rms_norm_eps": 1e-6,
    "moe_intermediate_size": 1024,
    "num_experts_per_tok": 6,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
}
DEFAULT_THETA = 8_000_000.0
MLA_DEFAULTS = {
    **V3_DEFAULTS,
    "vocab_size": 262144,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 32,
    "num_attention_heads": 64,
    "num_key_value_heads": None,
    "n_routed_experts": 128,
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
#: What published files call keys.
SPELLINGS = {"num_shared_experts": "n_shared_experts", "use_qkv_bias": "attention_bias"}
#: What they call tensors of the smaller model.
RENAMED = {
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"\.attention\.": ".self_attn.",
    r"\.self_attn\.dense\.": ".self_attn.o_proj.",
    r"\.self_attn\.query_layernorm\.": ".self_attn.q_norm.",
    r"\.self_attn\.key_layernorm\.": ".self_attn.k_norm.",
    r"\.mlp\.gate\.expert_bias$": ".mlp.gate.e_score_correction_bias",
}
NAMES = replace(QWEN3_NAMES, qkv=("self_attn.query_key_value",))


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SarvamMoEForCausalLM."""
    config = _respelled(config, DEFAULTS)
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    layers = layer_specs(config, ctx, partial_rotary=True, default_theta=DEFAULT_THETA)
    names = NAMES if flag(config, "use_qk_norm") else replace(NAMES, qk_norm=None)
    return moe_decoder(config, ctx, layers, LISTED, names=names)


def build_mla(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SarvamMLAForCausalLM, whose rotation has a name of its own for YaRN."""
    config = _respelled(config, MLA_DEFAULTS)
    rope = rope_of(config).values
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "deepseek_yarn":
        said = {key: value for key, value in rope.items() if key != "type"}
        values = {**config.values, rope_key(config): {**said, "rope_type": "yarn"}}
        config = replace(config, values=values)
    return build_v3(config, ctx)


def _respelled(config: ModelConfig, defaults: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values = dict(config.values)
    values |= {name: values[key] for key, name in SPELLINGS.items() if key in values}
    return with_expert_defaults(replace(config, values=values), defaults)
