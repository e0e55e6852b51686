"""Hy4, also the text part of the model that sees: several residual streams that do not mix, around
GLM-5's sparse attention with sinks and a gate for each channel; experts with clamped gates, and a
shared one without.

Positions of images have several coordinates; of text all are the same. Defaults are those of
transformers' HYV4Config and HYV4VLTextConfig. The layer that predicts further tokens has one
residual, as vLLM's `HYV4MultiTokenPredictorLayer`.
"""

import math
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.deepseek import corrected_router, latent_spec
from hotshoe_models.deepseek_v32 import INDEXED, indexer_types
from hotshoe_models.further import NORMED, add_further
from hotshoe_models.glm_dsa import MIXERS
from hotshoe_models.hyper import HyperDecoder
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.spec import IndexSpec
from hotshoe_models.stream_specs import HyperSpec
from hotshoe_models.values import count, number, refuse

DEFAULTS: dict[str, Any] = {
    "vocab_size": 120832,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 2.827,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "mlp_layer_types": None,
    "layer_types": None,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "indexer_types": None,
    "num_nextn_predict_layers": 1,
    "hc_mult": 4,
    "hc_magnitude": 2.0,
    "hc_eps": 1e-6,
    "learnable_sink_init": 0.0,
    "swiglu_limit": 10.0,
    "rope_parameters": None,
}
SEEING_DEFAULTS: dict[str, Any] = {
    **DEFAULTS,
    "hidden_size": 6144,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 78,
    "num_attention_heads": 64,
    "q_lora_rank": 2048,
    "index_n_heads": 32,
}
#: Which indexers are shared, in files that say nothing of it.
SCHEDULE = {"index_topk_freq": 4, "index_skip_topk_offset": 2}
#: What transformers and published files call tensors.
RENAMES = (
    (r"\.hc_pre\.hc_", ".hc_"),
    (r"\.learnable_sink_param", ".sinks"),
    (r"\.linear_gate\.", ".gate_proj."),
    (r"\.hc_attn_layer\.hc_", ".hc_attn_"),
    (r"\.hc_mlp_layer\.hc_", ".hc_ffn_"),
    (r"\.attn_hc\.", ".hc_attn_"),
    (r"\.ffn_hc\.", ".hc_ffn_"),
    (r"\.hc_head_", ".hc_"),
)


FURTHER_LAYER = "model.mtp_layers.{}."


def build(config: ModelConfig, ctx: BuildContext) -> HyperDecoder:
    """Build HYV4ForCausalLM."""
    return _decoder(config, ctx, DEFAULTS)


def build_seeing(config: ModelConfig, ctx: BuildContext) -> HyperDecoder:
    """Build the text part of HYV4VLForConditionalGeneration, which rotates neighboring channels and
    whose norms of latents have the epsilon of all others."""
    return _decoder(config, ctx, SEEING_DEFAULTS, seeing=True)


def _decoder(
    config: ModelConfig, ctx: BuildContext, defaults: dict[str, Any], seeing: bool = False
) -> HyperDecoder:
    values = {**SCHEDULE, **config.values, "rope_interleave": seeing}
    config = with_expert_defaults(replace(config, values=values), defaults)
    types, key = indexer_types(config)
    if types[0] != "full":
        raise refuse(config, key, "needs an indexer in its first layer")
    layers = config.size("num_hidden_layers")
    if config.get("layer_types") not in (None, [INDEXED[0]] * layers):
        raise refuse(config, "layer_types", f"has {INDEXED[0]} in each of {layers} layers")
    index = IndexSpec(
        num_heads=config.size("index_n_heads"),
        head_dim=config.size("index_head_dim"),
        top_k=config.size("index_topk"),
        norm_eps=number(config, "rms_norm_eps"),
        interleaved=seeing,
        last=True,
    )
    config.size("q_lora_rank")
    spec = latent_spec(config, ctx)
    assert spec.latent is not None
    if index.head_dim < spec.latent.rope_dim:
        raise refuse(config, "index_head_dim", f"rotates {spec.latent.rope_dim} channels of it")
    latent = replace(spec.latent, index=index, gate="gate_proj", channel_gates=True, sinks="sinks")
    if seeing:
        latent = replace(latent, norm_eps=number(config, "rms_norm_eps"))
    mixers = [MIXERS[kind] for kind in types]
    kinds = tuple(replace(x, mixer=m) for x, m in zip(spec.layers, mixers, strict=True))
    experts = mixture(
        config,
        corrected_router(config),
        experts="n_routed_experts",
        limit=number(config, "swiglu_limit"),
        shared_limits=(math.inf, math.inf),
        shared_size=count(config, "n_shared_experts") * config.size("moe_intermediate_size"),
    )
    spec = replace(
        spec,
        layers=with_experts(kinds, experts, sparse_types(config)),
        latent=latent,
        hyper=HyperSpec(
            count=config.size("hc_mult"),
            iterations=1,
            eps=number(config, "hc_eps"),
            mixes=False,
            magnitude=number(config, "hc_magnitude"),
        ),
    )
    for pattern, name in RENAMES:
        ctx.weights.rename(pattern, name)
    ctx.weights.ignore([r"^model\.mtp_layers\."], "layers that predict further tokens")
    own, model = [replace(kinds[0], mixture=experts)], HyperDecoder(spec, ctx)
    further = count(config, "num_nextn_predict_layers")
    return add_further(model, replace(spec, hyper=None), ctx, further, NORMED, FURTHER_LAYER, own)
