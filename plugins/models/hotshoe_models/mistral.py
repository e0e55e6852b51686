"""Mistral and Ministral: Llama's shape with a sliding window, on every layer unless the file says
null or lists the layers.

Defaults are those of transformers' MistralConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    layer_specs,
    layer_types,
    optional_size,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": 4096,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MistralForCausalLM and MinistralForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    window = optional_size(config, "sliding_window")
    types = layer_types(config, lambda i: FULL if window is None else SLIDING)
    return DenseDecoder(decoder_spec(config, layer_specs(config, ctx, types, window)), ctx)
