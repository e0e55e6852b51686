"""Granite 3: Llama's shape with factors on embeddings, scores, residuals and logits.

Defaults are those of transformers' GraniteConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.values import decoder_spec, flag, layer_specs, number, with_defaults

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "mlp_bias": False,
    "embedding_multiplier": 1.0,
    "logits_scaling": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GraniteForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        attention_scale=number(config, "attention_multiplier"),
        embedding_scale=number(config, "embedding_multiplier"),
        residual_scale=number(config, "residual_multiplier"),
        logits_divisor=number(config, "logits_scaling"),
    )
    return DenseDecoder(spec, ctx)
