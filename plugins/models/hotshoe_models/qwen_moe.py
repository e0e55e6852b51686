"""Qwen 2 MoE (shared experts behind a gate) and Qwen 3 MoE: the dense families' attention.

Defaults are those of transformers' Qwen2MoeConfig and Qwen3MoeConfig.
"""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, sparse_layers, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN2_DEFAULTS, QWEN3_NAMES
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
)

SHARED_DEFAULTS = {
    **QWEN2_DEFAULTS,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": None,
}
QWEN2_MOE_DEFAULTS = {
    **SHARED_DEFAULTS,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "qkv_bias": True,
}
QWEN3_MOE_DEFAULTS = {
    **SHARED_DEFAULTS,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": None,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "attention_bias": False,
}
SHARED = "mlp.shared_expert"
NAMES = MoeNames(
    shared_gate_up=(f"{SHARED}.gate_proj", f"{SHARED}.up_proj"), shared_down=f"{SHARED}.down_proj"
)
QWEN3_EXPERTS = MoeNames()


def build_qwen2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen2MoeForCausalLM."""
    config = with_expert_defaults(config, QWEN2_MOE_DEFAULTS)
    window = _window(config)
    last = count(config, "max_window_layers")
    types = layer_types(
        config, lambda i: SLIDING if window is not None and i % 2 == 0 and i < last else FULL
    )
    layers = layer_specs(config, ctx, types, window)
    shared = config.size("shared_expert_intermediate_size")
    experts = mixture(config, _router(config), shared_size=shared, shared_gated=True, names=NAMES)
    layers = with_experts(layers, experts, sparse_layers(config))
    return DenseDecoder(decoder_spec(config, layers, qkv_bias=flag(config, "qkv_bias")), ctx)


def build_qwen3(
    config: ModelConfig, ctx: BuildContext, names: MoeNames = QWEN3_EXPERTS
) -> DenseDecoder:
    """Build Qwen3MoeForCausalLM, or a part of its shape whose experts have other names."""
    return DenseDecoder(qwen3_spec(config, ctx, names), ctx)


def qwen3_spec(
    config: ModelConfig, ctx: BuildContext, names: MoeNames = QWEN3_EXPERTS
) -> DecoderSpec:
    """Describe a decoder of Qwen 3's shape with experts."""
    config = with_expert_defaults(config, QWEN3_MOE_DEFAULTS)
    window = _window(config)
    types = layer_types(config, lambda i: FULL if window is None else SLIDING)
    layers = layer_specs(config, ctx, types, window)
    experts = mixture(config, _router(config), names=names)
    layers = with_experts(layers, experts, sparse_layers(config))
    bias = flag(config, "attention_bias")
    return decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=QWEN3_NAMES)


def _router(config: ModelConfig) -> RouterSpec:
    return RouterSpec(renormalize=flag(config, "norm_topk_prob"))


def _window(config: ModelConfig) -> int | None:
    windowed = flag(config, "use_sliding_window")
    return optional_size(config, "sliding_window") if windowed else None
