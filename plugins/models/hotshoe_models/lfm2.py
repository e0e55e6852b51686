"""LFM2: short convolutions, a few layers of attention between them, and a variant with experts.

Defaults are those of transformers' Lfm2Config and Lfm2MoeConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.convolutions import conv_block
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    number,
    refuse,
    with_defaults,
)

SHAPE = {
    "vocab_size": 65536,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "conv_bias": False,
    "conv_L_cache": 3,
    "layer_types": None,
}
DEFAULTS = {
    **SHAPE,
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
    "full_attn_idxs": None,
}
MOE_DEFAULTS = {
    **SHAPE,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts_per_tok": 4,
    "num_experts": 32,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.0,
    "norm_topk_prob": True,
}
DEFAULT_THETA = 1_000_000.0
CONV = "conv"
NAMES = WeightNames(
    final_norm="model.embedding_norm",
    input_norm="operator_norm",
    mlp_norm="ffn_norm",
    o="self_attn.out_proj",
    qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    gate_up=("feed_forward.w1", "feed_forward.w3"),
    down="feed_forward.w2",
)
EXPERTS = MoeNames(
    router="feed_forward.gate",
    correction="feed_forward.expert_bias",
    gate_up=("feed_forward.experts.{}.w1", "feed_forward.experts.{}.w3"),
    down="feed_forward.experts.{}.w2",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Lfm2ForCausalLM."""
    config = _read(config, DEFAULTS)
    return _decoder(config, ctx, _layers(config, ctx), _inner_size(config))


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Lfm2MoeForCausalLM."""
    config = _read(config, MOE_DEFAULTS)
    router = RouterSpec(
        "sigmoid",
        renormalize=flag(config, "norm_topk_prob"),
        scale=number(config, "routed_scaling_factor"),
        correction=flag(config, "use_expert_bias"),
    )
    dense, experts = count(config, "num_dense_layers"), mixture(config, router, names=EXPERTS)
    layers = with_experts(_layers(config, ctx), experts, lambda i: i >= dense)
    return _decoder(config, ctx, layers, config.size("intermediate_size"))


def _read(config: ModelConfig, defaults: dict[str, object]) -> ModelConfig:
    """Fill in absent keys; two have other names in older files."""
    older = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
    values = dict(config.values)
    values |= {new: values.pop(old) for old, new in older.items() if old in values}
    return with_defaults(replace(config, values={**values, "hidden_act": "silu"}), defaults)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe layers as `layer_types` says, or older files' list of those that attend."""
    number_of = config.size("num_hidden_layers")
    attending = config.get("full_attn_idxs")
    if attending is None:
        attending = list(range(number_of))
    if not isinstance(attending, list):
        raise refuse(config, "full_attn_idxs", "needs a list of numbers of layers")
    types = layer_types(config, lambda i: FULL if i in attending else CONV, (FULL, CONV))
    layers = layer_specs(config, ctx, [FULL] * number_of, default_theta=DEFAULT_THETA)
    return tuple(
        layer if kind == FULL else replace(layer, mixer=CONV, rotation=None)
        for layer, kind in zip(layers, types, strict=True)
    )


def _inner_size(config: ModelConfig) -> int:
    """Return the channels between an MLP's matrices, which files may give before a rounding."""
    size = config.size("intermediate_size")
    if not flag(config, "block_auto_adjust_ff_dim"):
        return size
    every = config.size("block_multiple_of")
    return -(-int(number(config, "block_ffn_dim_multiplier") * (2 * size // 3)) // every) * every


def _decoder(
    config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...], inner: int
) -> DenseDecoder:
    spec = decoder_spec(
        config,
        layers,
        norm_eps=number(config, "norm_eps"),
        intermediate_size=inner,
        conv=conv_block(config, ctx),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
