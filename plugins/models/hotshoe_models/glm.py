"""GLM-4 (9B), GLM-4-0414 and GLM-Z1: half of each head rotated, in pairs of neighboring channels.

The later ones norm each block's output, too. Defaults are those of transformers' GlmConfig and
Glm4Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, flag, interleaved, layer_specs, with_defaults

DEFAULTS = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-07,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
NAMES = WeightNames(gate_up=("mlp.gate_up_proj",))
GLM4_NAMES = replace(
    NAMES, post_attention_norm="post_self_attn_layernorm", post_mlp_norm="post_mlp_layernorm"
)


def build_glm(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GlmForCausalLM."""
    return _decoder(config, ctx, NAMES)


def build_glm4(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Glm4ForCausalLM."""
    return _decoder(config, ctx, GLM4_NAMES)


def _decoder(config: ModelConfig, ctx: BuildContext, names: WeightNames) -> DenseDecoder:
    config = with_defaults(config, DEFAULTS)
    layers = interleaved(layer_specs(config, ctx, partial_rotary=True))
    bias = flag(config, "attention_bias")
    return DenseDecoder(decoder_spec(config, layers, qkv_bias=bias, names=names), ctx)
