"""GPT-NeoX and Pythia: attention and MLP in parallel, each behind a layer norm of its own;
q, k and v of a head lie together in the checkpoint. GPT-NeoX Japanese: one behind the other, and a
single bias behind attention, in the last layer.

Defaults are those of transformers' GPTNeoXConfig and GPTNeoXJapaneseConfig.
"""

from collections.abc import Mapping
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
    "vocab_size": 50432,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "use_parallel_residual": True,
    "attention_bias": True,
}
#: What the keys are called that other families have too, and their defaults.
OWN_KEYS = {
    "partial_rotary_factor": ("rotary_pct", 0.25),
    "rope_theta": ("rotary_emb_base", 10_000.0),
}
NAMES = WeightNames(
    embedding="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    lm_head="embed_out",
    layer="gpt_neox.layers.{}.",
    qkv=("attention.query_key_value",),
    grouped_qkv=True,
    o="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    bare=(r"^(?=(embed_in|layers|final_layer_norm)\.)", "gpt_neox."),
    unused=(r"\.attention\.(masked_)?bias$", r"\.rotary_emb\.inv_freq$"),
)

JAPANESE_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_multiple_size": 4,
    "hidden_act": "gelu",
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "is_decoder": False,
}
JAPANESE_KEYS = {**OWN_KEYS, "partial_rotary_factor": ("rotary_pct", 1.0)}
JAPANESE_NAMES = replace(
    NAMES,
    embedding="gpt_neox_japanese.embed_in",
    final_norm="gpt_neox_japanese.final_layer_norm",
    layer="gpt_neox_japanese.layers.{}.",
    bare=(NAMES.bare[0], "gpt_neox_japanese."),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTNeoXForCausalLM."""
    config = _named(with_defaults(config, DEFAULTS), OWN_KEYS)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        layer_specs(config, ctx, partial_rotary=True),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        parallel=flag(config, "use_parallel_residual"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def build_japanese(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GPTNeoXJapaneseForCausalLM."""
    config = _named(with_defaults(config, JAPANESE_DEFAULTS), JAPANESE_KEYS)
    *first, last = layer_specs(config, ctx, partial_rotary=True)
    spec = decoder_spec(
        config,
        (*first, replace(last, o_bias=True)),
        intermediate_size=config.size("hidden_size") * config.size("intermediate_multiple_size"),
        activation=activation(config, "hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm="layer",
        norm_eps=number(config, "layer_norm_eps"),
        names=JAPANESE_NAMES,
    )
    ctx.weights.rename(r"\.attention\.dense_bias$", ".attention.dense.bias")
    return DenseDecoder(spec, ctx)


def _named(config: ModelConfig, keys: Mapping[str, tuple[str, float]]) -> ModelConfig:
    """Return the configuration by the keys that other families have."""
    named = {key: config.get(own, default) for key, (own, default) in keys.items()}
    values = {**named, **config.values, "num_key_value_heads": None, "head_dim": None}
    return replace(config, values=values)
