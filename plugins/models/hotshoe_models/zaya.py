"""Zaya: attention of convolved q and k, and one expert for a token, of which one does nothing.

Defaults are those of transformers' ZayaConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.mixtures import mixture
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_size,
    refuse,
    with_defaults,
)
from hotshoe_models.zaya_layers import ZayaDecoder, ZayaParts

DEFAULTS = {
    "vocab_size": 262272,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "sliding_window": None,
    "layer_types": None,
    "attention_bias": False,
    "lm_head_bias": False,
    "moe_intermediate_size": 2048,
    "num_experts": 16,
    "num_experts_per_tok": 1,
    "router_hidden_size": 256,
    "cca_time0": 2,
    "cca_time1": 2,
}
#: What files call layers, and what attention in them sees.
KINDS = {"hybrid": FULL, "hybrid_sliding": SLIDING}
ROPE = {
    "hybrid": {"rope_theta": 5_000_000.0, "partial_rotary_factor": 0.5},
    "hybrid_sliding": {"rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
}
EXPERTS = MoeNames(
    correction="mlp.gate.balancing_biases",
    stacked=Stacked(gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", named=True),
)


def build(config: ModelConfig, ctx: BuildContext) -> ZayaDecoder:
    """Build ZayaForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if flag(config, "attention_bias"):
        raise refuse(config, "attention_bias", "has no biases there")
    if config.size("num_experts_per_tok") != 1:
        raise refuse(config, "num_experts_per_tok", "has one expert for a token")
    bias = flag(config, "lm_head_bias")
    spec = decoder_spec(config, _layers(config, ctx), intermediate_size=0, lm_head_bias=bias)
    if spec.num_kv_heads * spec.head_dim % 2:
        raise refuse(config, "head_dim", "takes half of all values from the token before")
    if bias and spec.tied:  # which goes with the matrix, under the matrix' name
        ctx.weights.rename(rf"^{spec.names.lm_head}\.bias$", f"{spec.names.embedding}.bias")
    parts = ZayaParts(
        taps=(config.size("cca_time0"), config.size("cca_time1")),
        router_size=config.size("router_hidden_size"),
        mixture=mixture(config, RouterSpec(), names=EXPERTS),
    )
    return ZayaDecoder(spec, ctx, parts)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe the layers by the names that other families have for their kinds."""
    types = layer_types(config, lambda i: "hybrid", tuple(KINDS))
    rope = config.get("rope_parameters") or ROPE
    if isinstance(rope, Mapping):  # published files repeat a type beside those of the kinds
        rope = {KINDS.get(key, key): value for key, value in rope.items()}
    config = replace(config, values={**config.values, "rope_parameters": rope})
    kinds, window = [KINDS[kind] for kind in types], optional_size(config, "sliding_window")
    return layer_specs(config, ctx, kinds, window, partial_rotary=True)
