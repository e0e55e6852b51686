"""Seed-OSS: Llama's shape with biases on q, k and v.

Defaults are those of transformers' SeedOssConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.values import decoder_spec, flag, layer_specs, with_defaults

DEFAULTS = {
    **SHAPE,
    "vocab_size": 155136,
    "intermediate_size": 27648,
    "num_hidden_layers": 64,
    "num_attention_heads": 80,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524288,
    "attention_bias": True,
    "attention_out_bias": False,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build SeedOssForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    spec = decoder_spec(
        config,
        layer_specs(config, ctx),
        qkv_bias=flag(config, "attention_bias"),
        o_bias=flag(config, "attention_out_bias"),
        mlp_bias=flag(config, "mlp_bias"),
    )
    return DenseDecoder(spec, ctx)
