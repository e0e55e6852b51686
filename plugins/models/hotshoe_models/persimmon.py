"""Persimmon 8B: layer norms, also of each head's q and k; q, k and v of a head lie together.

Defaults are those of transformers' PersimmonConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    number,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 4096,
    "intermediate_size": 16384,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "hidden_act": "relu2",
    "max_position_embeddings": 16384,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": True,
}
NAMES = WeightNames(
    final_norm="model.final_layernorm",
    qkv=("self_attn.query_key_value",),
    grouped_qkv=True,
    layer_qk_norm="shared",
    o="self_attn.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    bare=(r"^(?=(embed_tokens|layers|final_layernorm)\.)", "model."),
)
QK_NORMS = ("self_attn.q_layernorm", "self_attn.k_layernorm")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PersimmonForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    config = replace(config, values={**config.values, "num_key_value_heads": None})
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, partial_rotary=True),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        names=replace(NAMES, qk_norm=QK_NORMS if flag(config, "qk_layernorm") else None),
    )
    return DenseDecoder(spec, ctx)
