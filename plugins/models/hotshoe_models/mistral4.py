"""Mistral Small 4: latent attention, experts behind a softmax, queries that grow with position.

Defaults are those of transformers' Mistral4Config.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.consolidated import NAMED
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import EXPERTS, SHARED, latent_spec, with_mixtures
from hotshoe_models.ministral import ROPE as MINISTRAL_ROPE
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.values import (
    count,
    flag,
    number,
    refuse,
    rope_key,
    rope_of,
    with_rope,
    with_temperature,
)

DEFAULTS = {
    **SHARED,
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "n_shared_experts": 1,
    "n_routed_experts": 128,
    "routed_scaling_factor": 1.0,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 0,
    "norm_topk_prob": True,
    "max_position_embeddings": 1048576,
    "rope_interleave": True,
}
ROPE = {
    **MINISTRAL_ROPE,
    "rope_theta": 10_000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
}
NAMES = MoeNames(
    stacked=Stacked(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", named=True)
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Mistral4ForCausalLM."""
    config = _whole_rotation(with_rope(with_expert_defaults(config, DEFAULTS), ROPE))
    dense, spec = count(config, "first_k_dense_replace"), latent_spec(config, ctx)
    spec = replace(spec, layers=with_temperature(config, spec.layers))
    names = EXPERTS if config.get(NAMED) else NAMES
    return DenseDecoder(
        with_mixtures(config, spec, softmax_router, lambda i: i >= dense, names), ctx
    )


def _whole_rotation(config: ModelConfig) -> ModelConfig:
    """Leave out the share of a head that is rotated, which sizes say as well."""
    key, rope = "partial_rotary_factor", rope_of(config)
    if rope.get(key) is None:
        return config
    rotated = config.size("qk_rope_head_dim")
    size = config.size("qk_nope_head_dim") + rotated
    if abs(number(rope, key) * size - rotated) >= 1:
        raise refuse(rope, key, f"rotates {rotated} of {size} channels")
    rest = {k: v for k, v in rope.values.items() if k != key}
    return replace(config, values={**config.values, rope_key(config): rest})


def softmax_router(config: ModelConfig) -> RouterSpec:
    """Describe a router of scores by softmax, whose experts may lie in groups."""
    groups, kept = config.size("n_group"), config.size("topk_group")
    if kept > groups:
        raise refuse(config, "topk_group", f"has {groups} groups of experts")
    if groups > 1 and config.size("n_routed_experts") < 2 * groups:
        raise refuse(config, "n_group", "counts the two best experts of each group")
    return RouterSpec(
        renormalize=flag(config, "norm_topk_prob"),
        scale=number(config, "routed_scaling_factor"),
        groups=groups,
        groups_kept=kept,
        group_score="top2" if groups > 1 else "max",
    )
