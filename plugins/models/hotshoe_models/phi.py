"""Phi-1, 1.5 and 2: one layer norm before attention and MLP, which run in parallel; half of each
head rotated, biases everywhere, on the output matrix too.

Defaults are those of transformers' PhiConfig.
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
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 51200,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "gelu_new",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "partial_rotary_factor": 0.5,
    "qk_layernorm": False,
}
NAMES = WeightNames(
    final_norm="model.final_layernorm",
    mlp_norm=None,
    o="self_attn.dense",
    gate_up=("mlp.fc1",),
    down="mlp.fc2",
    bare=(r"^(?=(embed_tokens|layers|final_layernorm)\.)", "model."),
)
QK_NORMED = replace(
    NAMES, qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"), layer_qk_norm="shared"
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PhiForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    names = QK_NORMED if flag(config, "qk_layernorm") else NAMES
    if flag(config, "tie_word_embeddings"):
        raise refuse(config, "tie_word_embeddings", "has an output matrix with a bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, partial_rotary=True),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        parallel=True,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        lm_head_bias=True,
        names=names,
    )
    return DenseDecoder(spec, ctx)
