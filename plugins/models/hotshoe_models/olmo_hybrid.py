"""OLMo Hybrid: gated-delta blocks with norms in front, every fourth layer attention as OLMo 2's.

Betas reach 2, so that a state may turn its sign. Defaults are those of transformers'
OlmoHybridConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, DeltaNames
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deltas import KEYS, LINEAR, delta_spec, with_deltas
from hotshoe_models.kimi_linear import CONV, QKV
from hotshoe_models.olmo import NAMES
from hotshoe_models.spec import DeltaBlock, Projection, WeightNames
from hotshoe_models.values import (
    FULL,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    rope_of,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 100352,
    "hidden_size": 3840,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 30,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-6,
    "layer_types": None,
    "linear_num_key_heads": None,
    "linear_num_value_heads": None,
    "linear_key_head_dim": None,
    "linear_value_head_dim": None,
    "linear_conv_kernel_dim": 4,
    "linear_allow_neg_eigval": True,
}
#: Of the norm in front of the gate, which no file says.
GATE_EPS = 1e-5
DELTA_NAMES = DeltaNames(conv=CONV, norm="o_norm.weight")
PROJECTIONS = (
    QKV,
    Projection((("g_proj", ("z",)), ("b_proj", ("beta",)), ("a_proj", ("decay",)))),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OlmoHybridForCausalLM, which rotates where the file has a rotary base alone."""
    config = _sized(with_defaults(config, DEFAULTS))
    last = config.size("num_hidden_layers") - 1
    few = last < 3  # too few layers for a fourth one
    types = layer_types(
        config, lambda i: FULL if i % 4 == 3 or (few and i == last) else LINEAR, (LINEAR, FULL)
    )
    layers = layer_specs(config, ctx, [FULL] * len(types))
    if rope_of(config).get("rope_theta", config.get("rope_theta")) is None:
        layers = tuple(replace(layer, rotation=None) for layer in layers)
    layers = tuple(
        replace(layer, names=WeightNames()) if kind == LINEAR else layer
        for layer, kind in zip(with_deltas(layers, types), types, strict=True)
    )
    delta = replace(
        delta_spec(config, ctx),
        norm_eps=GATE_EPS,
        beta_scale=2.0 if flag(config, "linear_allow_neg_eigval") else 1.0,
    )
    block = DeltaBlock(delta=delta, projections=PROJECTIONS, out="o_proj", names=DELTA_NAMES)
    ctx.weights.rename(r"\.attention_layer_norm\.", ".input_layernorm.")
    ctx.weights.rename(r"\.feedforward_layer_norm\.", ".post_attention_layernorm.")
    bias = flag(config, "attention_bias")
    spec = decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, delta=block, names=NAMES)
    return DenseDecoder(spec, ctx)


def _sized(config: ModelConfig) -> ModelConfig:
    """Fill in the sizes of gated-delta blocks that follow from others."""
    heads = config.size("num_attention_heads")
    keys, values = (config.size(KEYS[name], heads) for name in ("key_heads", "heads"))
    key_dim = config.size(KEYS["key_dim"], 3 * config.size("hidden_size") // (4 * keys))
    sizes = {"key_heads": keys, "heads": values, "key_dim": key_dim}
    sizes["value_dim"] = config.size(KEYS["value_dim"], 2 * key_dim)
    found = {KEYS[name]: size for name, size in sizes.items()}
    return replace(config, values={**config.values, **found})
