"""OPT: a learned vector for each position, layer norms, MLPs of ReLU.

Defaults are those of transformers' OPTConfig. OPT-350m norms behind its blocks and is refused.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    decoder_spec,
    flag,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "word_embed_proj_dim": None,
    "num_attention_heads": 12,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}
NORM_EPS = 1e-5
#: Vectors in front of that of the first position.
POSITION_OFFSET = 2
#: What is served of options that one model of the family has otherwise.
FIXED = {
    "do_layer_norm_before": True,
    "_remove_final_layer_norm": False,
    "layer_norm_elementwise_affine": True,
}
NAMES = WeightNames(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    final_norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.{}.",
    input_norm="self_attn_layer_norm",
    mlp_norm="final_layer_norm",
    o="self_attn.out_proj",
    gate_up=("fc1",),
    down="fc2",
    bare=(r"^(?=decoder\.)", "model."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OPTForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    for name, value in FIXED.items():
        if flag(config, name) != value:
            raise refuse(config, name, f"is served with {str(value).lower()} alone")
    size = config.size("hidden_size")
    if config.size("word_embed_proj_dim", size) != size:
        raise refuse(config, "word_embed_proj_dim", f"needs embeddings of {size} numbers")
    others = {"num_key_value_heads": None, "head_dim": None}
    config = replace(config, values={**config.values, **others})
    bias = flag(config, "enable_bias")
    spec = decoder_spec(
        config,
        (LayerSpec(rotation=None),) * config.size("num_hidden_layers"),
        intermediate_size=config.size("ffn_dim"),
        activation=activation(config, "activation_function", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=NORM_EPS,
        num_positions=config.size("max_position_embeddings"),
        position_offset=POSITION_OFFSET,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
