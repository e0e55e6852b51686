"""StarCoder 2: layer norms, MLPs without gates, biases everywhere, a window if the file says so.

Defaults are those of transformers' Starcoder2Config.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    PLAIN_ACTIVATIONS,
    SLIDING,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    number,
    optional_size,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 49152,
    "hidden_size": 3072,
    "intermediate_size": 12288,
    "num_hidden_layers": 30,
    "num_attention_heads": 24,
    "num_key_value_heads": 2,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 4096,
    "norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "sliding_window": None,
    "use_bias": True,
}
NAMES = WeightNames(gate_up=("mlp.c_fc",), down="mlp.c_proj")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Starcoder2ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    window = optional_size(config, "sliding_window")
    types = [FULL if window is None else SLIDING] * config.size("num_hidden_layers")
    bias = flag(config, "use_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, types, window),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "norm_epsilon"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
