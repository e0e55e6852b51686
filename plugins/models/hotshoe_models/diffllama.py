"""DiffLlama: Llama's shape with differential attention.

Defaults are those of transformers' DiffLlamaConfig.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.values import decoder_spec, flag, layer_specs, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "head_dim": None,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DiffLlamaForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    layers = (replace(layer, mixer="differential") for layer in layer_specs(config, ctx))
    bias = flag(config, "attention_bias")
    spec = decoder_spec(config, tuple(layers), qkv_bias=bias, o_bias=bias)
    for key, count in (
        ("num_key_value_heads", spec.num_kv_heads),
        ("num_attention_heads", spec.num_heads),
    ):
        if count % 2:
            raise refuse(config, key, "has two halves of heads")
    return DenseDecoder(spec, ctx)
