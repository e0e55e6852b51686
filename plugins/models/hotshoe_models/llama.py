"""Llama 2, 3, 3.1, 3.2, 3.3, and the many models of its shape (SmolLM, SmolLM 2, TinyLlama, Yi).

Defaults are those of transformers' LlamaConfig.
"""

from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.values import decoder_spec, flag, layer_specs, with_defaults

#: What other families of this shape share.
SHAPE = {
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
}
DEFAULTS = {**SHAPE, "head_dim": None}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build LlamaForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    return DenseDecoder(llama_spec(config, layer_specs(config, ctx)), ctx)


def llama_spec(
    config: ModelConfig, layers: tuple[LayerSpec, ...], **differences: Any
) -> DecoderSpec:
    """Describe a decoder whose biases are Llama's two options."""
    bias = flag(config, "attention_bias")
    return decoder_spec(
        config,
        layers,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        **differences,
    )
