"""Mellum 2: Qwen 3's layers with experts; layers with a window have a rotary base of their own.

Defaults, and the form of the layer that predicts further tokens, are those of transformers.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import add_further, further_type
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_DEFAULTS, QWEN3_NAMES
from hotshoe_models.qwen_next import COUNT, FURTHER, FURTHER_LAYER
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    with_rope,
)

OTHERS = {"use_sliding_window", "max_window_layers"}
DEFAULTS = {
    **{key: value for key, value in QWEN3_DEFAULTS.items() if key not in OTHERS},
    "vocab_size": 98304,
    "hidden_size": 2304,
    "intermediate_size": 7168,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 1024,
    "moe_intermediate_size": 896,
    "num_experts_per_tok": 8,
    "num_experts": 64,
    "norm_topk_prob": True,
    "mlp_layer_types": None,
}
ROPE = {FULL: {"rope_theta": 500_000.0}, SLIDING: {"rope_theta": 10_000.0}}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MellumForCausalLM."""
    first = {"first_k_dense_replace": 0}
    config = with_rope(with_expert_defaults(config, {**DEFAULTS, **first}), ROPE)
    types = layer_types(config, lambda i: FULL)
    window = optional_size(config, "sliding_window")
    experts = mixture(config, RouterSpec(renormalize=flag(config, "norm_topk_prob")))
    layers = layer_specs(config, ctx, types, window)
    layers = with_experts(layers, experts, sparse_types(config))
    bias = flag(config, "attention_bias")
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    spec = decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=QWEN3_NAMES)
    number = int(any(map(config.get, ("num_mtp_layers", COUNT))))
    kinds = [further_type(config, "mtp_layer_types", SLIDING, (FULL, SLIDING))] * number
    sparse = config.get("mtp_mlp_layer_types") != ["dense"]
    own = with_experts(layer_specs(config, ctx, kinds, window), experts, lambda i: sparse)
    return add_further(DenseDecoder(spec, ctx), spec, ctx, number, FURTHER, FURTHER_LAYER, own)
