"""Lara Mini: Qwen3.5's gated-delta blocks, layers with a window, a few that see everything and do
not rotate; experts and a shared one without a gate in each.

Defaults are those of transformers' LaraMiniConfig.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext, DeltaNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deltas import LINEAR, delta_spec, with_deltas
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.qwen_moe import NAMES
from hotshoe_models.qwen_next import DEFAULTS as QWEN_NEXT
from hotshoe_models.spec import DeltaBlock, Projection
from hotshoe_models.values import FULL, SLIDING, decoder_spec, flag, layer_specs, layer_types

LACKS = {"intermediate_size", "decoder_sparse_step", "mlp_only_layers", "partial_rotary_factor"}
DEFAULTS = {
    **{key: value for key, value in QWEN_NEXT.items() if key not in LACKS},
    "hidden_size": 1024,
    "num_hidden_layers": 34,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "head_dim": 128,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "num_experts_per_tok": 4,
    "num_experts": 128,
    "sliding_window": 512,
}
PATTERN = (LINEAR, SLIDING, LINEAR, FULL, SLIDING)
PROJECTIONS = (Projection((("in_proj", ("q", "k", "v", "z", "beta", "decay")),)),)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build LaraMiniForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    types = layer_types(config, lambda i: PATTERN[i % len(PATTERN)], (LINEAR, SLIDING, FULL))
    attending = [SLIDING if kind == SLIDING else FULL for kind in types]
    layers = layer_specs(config, ctx, attending, config.size("sliding_window"))
    layers = tuple(replace(x, rotation=x.rotation if x.window else None) for x in layers)
    router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
    shared = config.size("shared_expert_intermediate_size")
    experts = mixture(config, router, shared_size=shared, names=NAMES)
    layers = with_experts(with_deltas(layers, types), experts, lambda i: True)
    names = DeltaNames(norm="out_norm.weight")
    delta = DeltaBlock(delta=delta_spec(config, ctx), projections=PROJECTIONS, names=names)
    bias = flag(config, "attention_bias")
    biases = {"qkv_bias": bias, "o_bias": bias}
    spec = decoder_spec(
        config, layers, intermediate_size=0, delta=delta, names=QWEN3_NAMES, **biases
    )
    return DenseDecoder(spec, ctx)
