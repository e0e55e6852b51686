"""OLMo: layer norms without weights, limits on q, k and v. OLMo 2 and 3: norms behind each block
and none before, norms of q and k over all heads.

Defaults are those of transformers' OlmoConfig, Olmo2Config and Olmo3Config.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_number,
    optional_size,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
}
OLMO_DEFAULTS = {
    **{key: value for key, value in DEFAULTS.items() if key != "rms_norm_eps"},
    "vocab_size": 50304,
    "clip_qkv": None,
}
#: Which no file says.
OLMO_EPS = 1e-5
OLMO3_DEFAULTS = {**DEFAULTS, "sliding_window": 4096, "layer_types": None}
OLMO3_THETA = 500_000.0
#: Every so-manieth layer of OLMo 3 attends to everything.
OLMO3_PATTERN = 4
NAMES = WeightNames(
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    wide_qk_norm=True,
    input_norm=None,
    mlp_norm=None,
    post_attention_norm="post_attention_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)


def build_olmo(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OlmoForCausalLM."""
    config = with_defaults(config, OLMO_DEFAULTS)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx),
        qkv_bias=bias,
        o_bias=bias,
        norm="layer",
        norm_weight=False,
        norm_eps=OLMO_EPS,
        qkv_limit=optional_number(config, "clip_qkv"),
    )
    return DenseDecoder(spec, ctx)


def build_olmo2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Olmo2ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    return _decoder(config, ctx, layer_specs(config, ctx))


def build_olmo3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Olmo3ForCausalLM."""
    config = with_defaults(config, OLMO3_DEFAULTS)
    types = layer_types(config, lambda i: SLIDING if (i + 1) % OLMO3_PATTERN else FULL)
    window = optional_size(config, "sliding_window")
    layers = layer_specs(config, ctx, types, window, default_theta=OLMO3_THETA)
    return _decoder(config, ctx, layers)


def _decoder(config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...]) -> DenseDecoder:
    bias = flag(config, "attention_bias")
    return DenseDecoder(decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=NAMES), ctx)
