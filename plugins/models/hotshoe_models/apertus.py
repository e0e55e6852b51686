"""Apertus: MLPs of xIELU without gates, norms of q and k per head.

Defaults are those of transformers' ApertusConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    with_defaults,
    with_rope,
)

DEFAULTS = {
    **{key: value for key, value in SHAPE.items() if key != "mlp_bias"},
    "vocab_size": 131072,
    "intermediate_size": 14336,
    "hidden_act": "xielu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
}
THETA = 12_000_000.0
ROPE = {
    "rope_type": "llama3",
    "rope_theta": THETA,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
NAMES = WeightNames(
    input_norm="attention_layernorm",
    mlp_norm="feedforward_layernorm",
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    gate_up=("mlp.up_proj",),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build ApertusForCausalLM."""
    config = with_rope(with_defaults(config, DEFAULTS), ROPE)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, default_theta=THETA),
        activation=activation(config, "hidden_act", {**PLAIN_ACTIVATIONS, "xielu": "xielu"}),
        gated=False,
        qkv_bias=bias,
        o_bias=bias,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
