"""Ling 3: Kimi delta attention whose decays have a least value, experts, and some layers of latent
attention with a gate for each head.

Defaults are those of transformers' BailingHybridConfig, whose keys have Kimi-Linear's spelling. The
layer that predicts further tokens attends and has experts, as in SGLang's `bailing_moe_nextn`.
"""

from dataclasses import replace
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, DeltaNames
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import corrected_router, latent_spec, with_mixtures
from hotshoe_models.deltas import LINEAR, decay_floor, delta_spec, with_deltas
from hotshoe_models.further import LISTED, add_further
from hotshoe_models.kimi_linear import CONV, QKV, SPELLINGS, in_spelling_of
from hotshoe_models.mixtures import sparse_types
from hotshoe_models.spec import DeltaBlock, Projection
from hotshoe_models.values import FULL, flag, layer_types, unused_layers, with_defaults

DEFAULTS = {
    "vocab_size": 157184,
    "hidden_size": 2560,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 42,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "n_routed_experts": 512,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 2,
    "max_position_embeddings": 262144,
    "rope_parameters": None,
    "rope_theta": 6_000_000.0,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
    "layer_group_size": 6,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
    "layer_types": None,
    "mlp_layer_types": None,
    "num_nextn_predict_layers": 1,
}
PROJECTIONS = (QKV, Projection((("g_proj", ("z",)), ("b_proj", ("beta",)), ("f_proj", ("decay",)))))
NAMES = DeltaNames(conv=CONV, norm="o_norm.weight")
#: Names that published files have, by those of other families.
RENAMED = {
    r"\.attention\.": ".self_attn.",
    r"^model\.word_embeddings\.": "model.embed_tokens.",
    r"\.self_attn\.dense\.": ".self_attn.o_proj.",
    r"\.self_attn\.forget_gate\.": ".self_attn.",
    r"\.gate\.expert_bias$": ".gate.e_score_correction_bias",
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build BailingHybridForCausalLM."""
    try:
        return _build(_respelt(config), ctx)
    except CheckpointError as error:
        raise CheckpointError(in_spelling_of(config, str(error))) from error


def _build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    every = config.size("layer_group_size")
    types = layer_types(config, lambda i: LINEAR if (i + 1) % every else FULL, (LINEAR, FULL))
    spec = latent_spec(config, ctx)
    assert spec.latent is not None
    floor = decay_floor(config, "kda_lower_bound") if flag(config, "kda_safe_gate") else None
    delta = replace(delta_spec(config, ctx), decay="channel", gate="sigmoid", decay_floor=floor)
    block = DeltaBlock(
        delta=delta, projections=PROJECTIONS, name="self_attn", out="o_proj", names=NAMES
    )
    spec = replace(
        spec,
        layers=with_deltas(spec.layers, types),
        latent=replace(spec.latent, gate="g_proj"),
        delta=block,
    )
    spec = with_mixtures(config, spec, corrected_router, sparse_types(config))
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    attending = [layer for layer in spec.layers if layer.mixer == "latent" and layer.mixture]
    number = spec.further_layers if attending else 0
    return add_further(DenseDecoder(spec, ctx), spec, ctx, number, LISTED, own=attending[-1:])


def _respelt(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that other families have."""
    values: dict[str, Any] = {SPELLINGS.get(k, k): v for k, v in config.values.items()}
    if "num_mtp_layers" in values:
        values["num_nextn_predict_layers"] = values.pop("num_mtp_layers")
    config = with_defaults(replace(config, values={**values, "rope_interleave": True}), DEFAULTS)
    heads = config.size("num_attention_heads")
    # Files that transformers writes have the rotated channels under the published key.
    size = config.size("linear_head_dim" if "linear_head_dim" in values else "head_dim")
    sizes = {f"linear_{part}_head_dim": size for part in ("key", "value")}
    sizes |= {f"linear_num_{part}_heads": heads for part in ("key", "value")}
    sizes |= {"linear_conv_kernel_dim": config.size("short_conv_kernel_size")}
    return replace(config, values={**config.values, **sizes})
