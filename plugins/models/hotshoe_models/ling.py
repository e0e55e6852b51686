"""The first mixtures of DeepSeek and of Ling: Llama's layers, experts that a softmax chooses, and
shared ones. Ling 2 and Ring 2 have Sarvam's shape.

Sources: the code published beside DeepSeek MoE 16B, Ling Lite and Ling Mini 2, and the keys of
their files. Defaults are those of its configuration classes.
"""

from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models import deepseek, sarvam
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    count,
    decoder_spec,
    flag,
    layer_specs,
    refuse,
    with_defaults,
)

DEEPSEEK_DEFAULTS = {
    **SHAPE,
    "vocab_size": 102400,
    "moe_intermediate_size": 1407,
    "n_routed_experts": None,
    "n_shared_experts": None,
    "num_experts_per_tok": None,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
}
DEFAULTS = {
    **SHAPE,
    "vocab_size": 30592,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 0,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "num_shared_experts": 0,
    "norm_topk_prob": True,
    "moe_intermediate_size": None,
    "first_k_dense_replace": 0,
    "use_qkv_bias": False,
    "use_bias": True,
}
#: The only values served of options of DeepSeek V2 without latents.
PLAIN = {"topk_method": "greedy", "routed_scaling_factor": 1.0, "scoring_func": "softmax"}
NAMES = WeightNames(qkv=("self_attn.query_key_value",))


def build_deepseek(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeepseekForCausalLM."""
    config = with_expert_defaults(config, DEEPSEEK_DEFAULTS)
    bias = flag(config, "attention_bias")
    return _decoder(config, ctx, "n_routed_experts", "n_shared_experts", qkv_bias=bias, o_bias=bias)


def build_deepseek_v2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeepseekV2ForCausalLM. Small text parts of models that see have no latents."""
    if config.get("use_mla", True) is not False:
        return deepseek.build_v2(config, ctx)
    for key, value in PLAIN.items():
        if config.get(key, value) != value:
            raise refuse(config, key, f"is served with {value} where it has no latents")
    return build_deepseek(with_defaults(config, {"n_shared_experts": 2}), ctx)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BailingMoeForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if flag(config, "norm_head"):
        raise refuse(config, "norm_head", "has no norms of the output matrix")
    for pattern, name in sarvam.RENAMED.items():
        ctx.weights.rename(pattern, name)
    biases = {"qkv_bias": flag(config, "use_qkv_bias"), "o_bias": flag(config, "use_bias")}
    return _decoder(config, ctx, "num_experts", "num_shared_experts", names=NAMES, **biases)


def build_v2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BailingMoeV2ForCausalLM."""
    if config.get("moe_router_enable_expert_bias", True) is not True:
        raise refuse(config, "moe_router_enable_expert_bias", "corrects what experts score")
    return sarvam.build(config, ctx)


def _decoder(
    config: ModelConfig, ctx: BuildContext, experts: str, shared: str, **differences: Any
) -> DenseDecoder:
    """Build a decoder with experts behind its first dense layers."""
    router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
    number = 0 if config.get(shared) is None else count(config, shared)
    size = number * config.size("moe_intermediate_size")
    described = mixture(config, router, experts=experts, shared_size=size)
    dense = count(config, "first_k_dense_replace")
    every = config.size("moe_layer_freq", 1)
    layers = with_experts(
        layer_specs(config, ctx), described, lambda i: i >= dense and i % every == 0
    )
    return DenseDecoder(decoder_spec(config, layers, **differences), ctx)
