"""Qwen 2, 2.5, MiMo (biases on q, k, v) and Qwen 3 (norms of q and k instead).

A sliding window applies, where `use_sliding_window` says so, from layer `max_window_layers` on.
Defaults are those of transformers' Qwen2Config and Qwen3Config.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import FurtherNames, add_further
from hotshoe_models.spec import DecoderSpec, LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    with_defaults,
)

QWEN2_DEFAULTS = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
QWEN3_DEFAULTS = {**QWEN2_DEFAULTS, "head_dim": 128, "attention_bias": False}
MIMO_FURTHER = FurtherNames(
    embedding_norm="token_layernorm",
    hidden_norm="hidden_layernorm",
    join="input_proj",
    final_norm="final_layernorm",
    hidden_first=True,
    passes_normed=True,
)
QWEN3_NAMES = WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm"))


def build_qwen2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen2ForCausalLM."""
    config = with_defaults(config, QWEN2_DEFAULTS)
    return DenseDecoder(decoder_spec(config, _layers(config, ctx), qkv_bias=True), ctx)


def build_mimo(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MiMoForCausalLM: Qwen 2, with layers behind that predict further tokens."""
    ctx.weights.ignore([r"^model\.mtp_layers\."], "layers that predict further tokens")
    config = with_defaults(config, {**QWEN2_DEFAULTS, "num_nextn_predict_layers": 0})
    spec = decoder_spec(config, _layers(config, ctx), qkv_bias=True)
    layer = "model.mtp_layers.{}."
    number = count(config, "num_nextn_predict_layers")
    return add_further(DenseDecoder(spec, ctx), spec, ctx, number, MIMO_FURTHER, layer)


def build_qwen3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Qwen3ForCausalLM."""
    return DenseDecoder(describe_qwen3(config, ctx), ctx)


def describe_qwen3(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe Qwen3ForCausalLM."""
    config = with_defaults(config, QWEN3_DEFAULTS)
    bias, layers = flag(config, "attention_bias"), _layers(config, ctx)
    return decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=QWEN3_NAMES)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    windowed = flag(config, "use_sliding_window")
    window = optional_size(config, "sliding_window") if windowed else None
    first = count(config, "max_window_layers") if window is not None else 0
    types = layer_types(config, lambda i: SLIDING if window is not None and i >= first else FULL)
    return layer_specs(config, ctx, types, window)
