"""Models of Llama's shape that differ in one thing: Helium (it rotates neighboring channels),
CWM (windows on three layers of four), InternLM 3 (its own names for biases), IQuest-Coder
(defaults), Jais 2 (layer norms, and MLPs of squared ReLU without gates).

Defaults are those of transformers' HeliumConfig, CwmConfig, InternLM3Config, IQuestCoderConfig and
Jais2Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.arcee import NAMES as UNGATED
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import DEFAULTS as LLAMA
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.values import (
    FULL,
    PLAIN_ACTIVATIONS,
    SLIDING,
    activation,
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    layer_types,
    number,
    optional_size,
    refuse,
    with_defaults,
    with_rope,
)

HELIUM_DEFAULTS = {
    **SHAPE,
    "vocab_size": 48000,
    "hidden_size": 2560,
    "intermediate_size": 7040,
    "num_hidden_layers": 24,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "head_dim": 128,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-8,
}
HELIUM_THETA = 100_000.0
CWM_DEFAULTS = {
    **{key: value for key, value in SHAPE.items() if key != "attention_bias"},
    "vocab_size": 128256,
    "hidden_size": 6144,
    "intermediate_size": 21504,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "sliding_window": 8192,
    "layer_types": None,
}
CWM_THETA = 1_000_000.0
CWM_ROPE = {
    "rope_type": "llama3",
    "rope_theta": CWM_THETA,
    "factor": 16.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}
#: Every so-manieth layer of CWM attends to everything, the first one among them.
CWM_PATTERN = 4
INTERNLM3_DEFAULTS = {
    **LLAMA,
    "vocab_size": 128512,
    "intermediate_size": 10240,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "head_dim": 128,
}
#: Published names of InternLM 3's biases, and Llama's.
INTERNLM3_BIASES = {"qkv_bias": "attention_bias", "bias": "mlp_bias"}
IQUEST_DEFAULTS = {
    **LLAMA,
    "vocab_size": 76800,
    "hidden_size": 5120,
    "intermediate_size": 27648,
    "num_hidden_layers": 80,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "head_dim": 128,
}
JAIS2_DEFAULTS = {
    **{key: value for key, value in LLAMA.items() if key != "rms_norm_eps"},
    "vocab_size": 150272,
    "hidden_size": 3328,
    "intermediate_size": 26624,
    "num_attention_heads": 26,
    "hidden_act": "relu2",
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "attention_bias": True,
    "mlp_bias": True,
}


def build_helium(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build HeliumForCausalLM, whose output projection has no bias."""
    config = with_defaults(config, HELIUM_DEFAULTS)
    layers = interleaved(layer_specs(config, ctx, default_theta=HELIUM_THETA))
    return DenseDecoder(replace(llama_spec(config, layers), o_bias=False), ctx)


def build_cwm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build CwmForCausalLM."""
    config = with_rope(with_defaults(config, CWM_DEFAULTS), CWM_ROPE)
    types = layer_types(config, lambda i: SLIDING if i % CWM_PATTERN else FULL)
    window = optional_size(config, "sliding_window")
    layers = layer_specs(config, ctx, types, window, default_theta=CWM_THETA)
    return DenseDecoder(decoder_spec(config, layers, mlp_bias=flag(config, "mlp_bias")), ctx)


def build_internlm3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build InternLM3ForCausalLM."""
    values = {INTERNLM3_BIASES.get(key, key): value for key, value in config.values.items()}
    config = with_defaults(replace(config, values=values), INTERNLM3_DEFAULTS)
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx)), ctx)


def build_iquest(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build IQuestCoderForCausalLM."""
    config = with_defaults(config, IQUEST_DEFAULTS)
    for key in ("clip_qkv", "use_sliding_window"):
        if config.get(key):
            raise refuse(config, key, "is served without it")
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx)), ctx)


def build_jais2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Jais2ForCausalLM."""
    config = with_defaults(config, JAIS2_DEFAULTS)
    spec = llama_spec(
        config,
        layer_specs(config, ctx),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        names=UNGATED,
    )
    return DenseDecoder(spec, ctx)
