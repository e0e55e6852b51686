"""GLM-5 Next (text): several residual streams, Kimi delta attention, and in every fourth layer
latent attention without rotation to groups of tokens that an indexer chooses; experts and a shared
one.

Defaults are those of transformers' Glm5NextTextConfig. The layer that predicts further tokens has
one residual, as vLLM's `Glm5NextMultiTokenPredictorLayer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, DeltaNames, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.deepseek import corrected_router
from hotshoe_models.deepseek_v32 import indexer_types
from hotshoe_models.deltas import LINEAR, decay_floor, equal_heads, with_deltas
from hotshoe_models.further import DEEPSEEK, add_further
from hotshoe_models.hyper import HyperDecoder
from hotshoe_models.kimi_linear import CONV, WITHIN, delta_block
from hotshoe_models.latent import GATES
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.spec import IndexSpec, LatentSpec, LayerSpec
from hotshoe_models.stream_specs import HyperSpec
from hotshoe_models.values import (
    FULL,
    count,
    decoder_spec,
    flag,
    layer_types,
    mapping,
    number,
    refuse,
    unused_layers,
)

DEFAULTS: dict[str, Any] = {
    "vocab_size": 154880,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "n_shared_experts": 1,
    "n_routed_experts": 288,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_rope_head_dim": 0,
    "v_head_dim": 256,
    "qk_nope_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "hidden_act": "silu",
    "max_position_embeddings": 1048576,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "mlp_layer_types": None,
    "attention_bias": False,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "head_dim": 0,
    "layer_types": None,
    "indexer_types": None,
    "swiglu_limit": 10.0,
    "linear_head_dim": 128,
    "linear_num_heads": 64,
    "linear_conv_kernel_dim": 4,
    "linear_lower_bound": -5.0,
    "hc_mult": 4,
    "hc_eps": 1e-6,
    "hc_sinkhorn_iters": 20,
    "index_kpool": 16,
    "index_kpool_always_select_tail": True,
    "num_nextn_predict_layers": 1,
}
#: Layers that choose what they read. Some files call them full.
INDEXED = "indexed_attention"
#: First layers without experts, in files that say nothing of them.
DENSE_LAYERS = 3
#: The least logarithm of a decay, and what `linear_attn_config` calls sizes and that.
FLOOR = "linear_lower_bound"
KEYS = {**WITHIN, "gate_lower_bound": FLOOR}
FURTHER = replace(DEEPSEEK, passes_normed=True)
NAMES = DeltaNames(conv=CONV, norm="o_norm.weight")
#: What transformers calls a module, and a matrix that has no name of its own.
RENAMES = (
    (r"\.self_attn\.forget_gate\.", ".self_attn."),
    (rf"\.{GATES}_gate$", f".{GATES}_gate.weight"),
)


def build(config: ModelConfig, ctx: BuildContext) -> HyperDecoder:
    """Build the text part of Glm5NextForConditionalGeneration."""
    config = _respelt(config)
    types = layer_types(config, _default_type, (LINEAR, FULL, INDEXED))
    _check(config, types)
    limit, scale = number(config, "swiglu_limit"), config.size("qk_nope_head_dim") ** -0.5
    experts = mixture(
        config,
        corrected_router(config),
        experts="n_routed_experts",
        limit=limit,
        shared_size=count(config, "n_shared_experts") * config.size("moe_intermediate_size"),
    )
    layers = [LayerSpec(Rotation((), interleaved=True), mixer="indexed")] * len(types)
    floor = None if config.get(FLOOR) is None else decay_floor(config, FLOOR)
    spec = decoder_spec(
        config,
        with_experts(with_deltas(layers, types), experts, sparse_types(config)),
        head_dim=0,
        attention_scale=scale,
        gate_limits=(limit, 1.0, 0.0),
        o_bias=flag(config, "attention_bias"),
        latent=_latent(config),
        delta=delta_block(config, ctx, NAMES, floor),
        hyper=HyperSpec(
            count=config.size("hc_mult"),
            iterations=config.size("hc_sinkhorn_iters"),
            eps=number(config, "hc_eps"),
            mean=True,
        ),
    )
    for pattern, name in RENAMES:
        ctx.weights.rename(pattern, name)
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    chosen = [layer for layer in spec.layers if layer.mixer == "indexed"]
    own, model = [replace(layer, mixture=experts) for layer in chosen[-1:]], HyperDecoder(spec, ctx)
    further = spec.further_layers if own else 0
    return add_further(model, replace(spec, hyper=None), ctx, further, FURTHER, own=own)


def _default_type(i: int) -> str:
    return LINEAR if i % 4 != 3 else INDEXED


def _respelt(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the family's defaults, by the keys that transformers writes."""
    values: dict[str, Any] = {"first_k_dense_replace": DENSE_LAYERS, **config.values}
    within = mapping(config, "linear_attn_config")
    values |= {KEYS[key]: value for key, value in within.items() if key in KEYS}
    if within and values.get(FLOOR, 0) is None and within.get("safe_gate", True):
        values[FLOOR] = DEFAULTS[FLOOR]
    return equal_heads(with_expert_defaults(replace(config, values=values), DEFAULTS))


def _check(config: ModelConfig, types: Sequence[str]) -> None:
    """Refuse what the family has in one way alone."""
    if count(config, "qk_rope_head_dim"):
        raise refuse(config, "qk_rope_head_dim", "rotates nothing; 0 is needed")
    top_k, group = config.size("index_topk"), config.size("index_kpool")
    if top_k % group:
        raise refuse(config, "index_topk", f"chooses whole groups of {group} tokens (index_kpool)")
    if not flag(config, "index_kpool_always_select_tail"):
        raise refuse(config, "index_kpool_always_select_tail", "reads the last group in any case")
    indexers, key = indexer_types(config)
    if "shared" in [own for own, kind in zip(indexers, types, strict=True) if kind != LINEAR]:
        raise refuse(config, key, "has an indexer in each layer of attention")


def _latent(config: ModelConfig) -> LatentSpec:
    eps = number(config, "rms_norm_eps")
    return LatentSpec(
        q_dim=config.size("q_lora_rank"),
        latent_dim=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=0,
        v_dim=config.size("v_head_dim"),
        bias=flag(config, "attention_bias"),
        norm_eps=eps,
        index=IndexSpec(
            num_heads=config.size("index_n_heads"),
            head_dim=config.size("index_head_dim"),
            top_k=config.size("index_topk"),
            group=config.size("index_kpool"),
        ),
    )
