"""Text parts of Qwen 2 VL, 2.5 VL, 3 VL, 2.5 Omni and 3 Omni, dense and with experts: Qwen 2's and
Qwen 3's layers.

Positions of images have several coordinates; of text all are the same, so that nothing but the
common rotation is left. Defaults are those of transformers' Qwen2_5_VLTextConfig,
Qwen3VLTextConfig, Qwen3VLMoeTextConfig, Qwen2_5OmniTextConfig and Qwen3OmniMoeTextConfig.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe_models import qwen, qwen_moe
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import with_expert_defaults
from hotshoe_models.qwen import QWEN2_DEFAULTS, QWEN3_DEFAULTS
from hotshoe_models.values import rope_key, rope_of, with_defaults

QWEN2_VL_DEFAULTS = {
    **QWEN2_DEFAULTS,
    "vocab_size": 152064,
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
}
QWEN2_VL_THETA = 1_000_000.0
WINDOWS = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
QWEN3_VL_DEFAULTS = {
    **{key: value for key, value in QWEN3_DEFAULTS.items() if key not in WINDOWS},
    "max_position_embeddings": 128000,
}
QWEN3_VL_THETA = 500_000.0
QWEN3_VL_MOE_DEFAULTS = {
    **QWEN3_VL_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": None,
    "tie_word_embeddings": True,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "num_experts": 60,
    "mlp_only_layers": None,
}
QWEN2_OMNI_DEFAULTS = {
    **QWEN2_VL_DEFAULTS,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "sliding_window": 32768,
    "max_window_layers": 28,
    "tie_word_embeddings": True,
}
QWEN3_OMNI_DEFAULTS = {
    **QWEN3_VL_MOE_DEFAULTS,
    "vocab_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 768,
    "num_experts_per_tok": 8,
    "num_experts": 128,
    "norm_topk_prob": True,
    "sliding_window": None,
}
OMNI_THETA = 1_000_000.0
EXPERTS = MoeNames(
    stacked=Stacked(
        gate_up="mlp.experts.gate_up_proj",
        down="mlp.experts.down_proj",
        transposed=True,
        named=True,
    )
)


def build_qwen2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Qwen2VLForConditionalGeneration and its successor."""
    return qwen.build_qwen2(_filled(config, QWEN2_VL_DEFAULTS, QWEN2_VL_THETA), ctx)


def build_qwen3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Qwen3VLForConditionalGeneration."""
    return qwen.build_qwen3(_filled(config, QWEN3_VL_DEFAULTS, QWEN3_VL_THETA), ctx)


def build_qwen3_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Qwen3VLMoeForConditionalGeneration, whose chosen experts' weights
    always add up to 1."""
    config = _filled(config, QWEN3_VL_MOE_DEFAULTS, QWEN3_VL_THETA)
    config = replace(config, values={**config.values, "norm_topk_prob": True})
    return qwen_moe.build_qwen3(config, ctx, EXPERTS)


def build_qwen2_omni(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Qwen2_5OmniForConditionalGeneration."""
    return qwen.build_qwen2(_filled(config, QWEN2_OMNI_DEFAULTS, OMNI_THETA), ctx)


def build_qwen3_omni(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build the text part of Qwen3OmniMoeForConditionalGeneration."""
    return qwen_moe.build_qwen3(_filled(config, QWEN3_OMNI_DEFAULTS, OMNI_THETA), ctx)


def _filled(config: ModelConfig, defaults: dict[str, Any], theta: float) -> ModelConfig:
    """Fill in absent keys, and call the rotation of text what it is."""
    fill = with_expert_defaults if "num_experts" in defaults else with_defaults
    config = fill(config, defaults)
    rope = {"rope_theta": config.get("rope_theta", theta), **rope_of(config).values}
    for key in ("rope_type", "type"):
        if rope.get(key) == "mrope":
            rope[key] = "default"
    return replace(config, values={**config.values, rope_key(config): rope})
