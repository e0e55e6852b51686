"""DeepSeek V2 and V3, and Kimi K2: latent attention, whose cache is a row per token for all heads.

Defaults are those of transformers' DeepseekV2Config and DeepseekV3Config.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, MoeNames, Rotation
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import add_further
from hotshoe_models.mixtures import (
    grouped_router,
    mixture,
    with_expert_defaults,
    with_experts,
)
from hotshoe_models.spec import DecoderSpec, LatentSpec, LayerSpec
from hotshoe_models.values import (
    count,
    decoder_spec,
    flag,
    number,
    optional_size,
    refuse,
    rope_of,
    unused_layers,
)

SHARED = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
V2_DEFAULTS = {
    **SHARED,
    "vocab_size": 102400,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "head_dim": None,
    "first_k_dense_replace": 0,
    "n_group": None,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.0,
    "topk_group": None,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "num_experts_per_tok": None,
    "moe_intermediate_size": 1407,
}
V3_DEFAULTS = {
    **SHARED,
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "routed_scaling_factor": 2.5,
    "n_group": 8,
    "topk_group": 4,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
    "rope_interleave": True,
    "num_nextn_predict_layers": 1,
}
EXPERTS = MoeNames()


def build_v2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeepseekV2ForCausalLM."""
    config = with_expert_defaults(config, V2_DEFAULTS)
    interleaved = {**config.values, "rope_interleave": True}
    spec = latent_spec(replace(config, values=interleaved), ctx)
    spec = replace(spec, mlp_bias=flag(config, "mlp_bias"))
    spec = with_mixtures(config, spec, _softmax_router, _behind_dense(config))
    return DenseDecoder(spec, ctx)


def build_v3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build DeepseekV3ForCausalLM, which Kimi K2 is too."""
    config = with_expert_defaults(config, V3_DEFAULTS)
    spec = latent_spec(config, ctx)
    spec = with_mixtures(config, spec, corrected_router, _behind_dense(config))
    return v3_decoder(config, spec, ctx)


def v3_decoder(config: ModelConfig, spec: DecoderSpec, ctx: BuildContext) -> DenseDecoder:
    """Build a decoder whose file may have layers for drafts behind its own."""
    new, old = "num_mtp_layers", "num_nextn_predict_layers"
    key = new if new in config.values else old
    spec = unused_layers(config, spec, key)
    return add_further(DenseDecoder(spec, ctx), spec, ctx, spec.further_layers)


def latent_spec(config: ModelConfig, ctx: BuildContext, **differences: Any) -> DecoderSpec:
    """Describe a decoder of latent attention, from the keys that all its families share, changed
    by a family's differences."""
    rope_dim = config.size("qk_rope_head_dim")
    rotation = Rotation.from_config(config.values, rope_dim, ctx.max_model_len)
    if rotation.rotary_dim != rope_dim:
        raise refuse(config, "partial_rotary_factor", "rotates all of qk_rope_head_dim")
    rotation = replace(rotation, interleaved=flag(config, "rope_interleave"))
    bias = flag(config, "attention_bias")
    latent = LatentSpec(
        q_dim=optional_size(config, "q_lora_rank"),
        latent_dim=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=rope_dim,
        v_dim=config.size("v_head_dim"),
        bias=bias,
    )
    return decoder_spec(
        config,
        (LayerSpec(rotation, mixer="latent"),) * config.size("num_hidden_layers"),
        attention_scale=_scale(config, latent.nope_dim + rope_dim),
        o_bias=bias,
        latent=latent,
        **differences,
    )


def _behind_dense(config: ModelConfig) -> Callable[[int], bool]:
    """Tell which layers have experts: those behind the first dense ones."""
    dense = count(config, "first_k_dense_replace")
    if config.get("moe_layer_freq", 1) != 1:
        raise refuse(config, "moe_layer_freq", "has experts in every layer behind the dense ones")
    return lambda i: i >= dense


def with_mixtures(
    config: ModelConfig,
    spec: DecoderSpec,
    router: Callable[[ModelConfig], RouterSpec],
    sparse: Callable[[int], bool],
    names: MoeNames = EXPERTS,
) -> DecoderSpec:
    """Give experts to the layers that are sparse; a file may have none at all."""
    if config.get("n_routed_experts") is None or not any(map(sparse, range(len(spec.layers)))):
        return spec
    shared = 0 if config.get("n_shared_experts") is None else count(config, "n_shared_experts")
    experts = mixture(
        config,
        router(config),
        experts="n_routed_experts",
        shared_size=shared * config.size("moe_intermediate_size"),
        names=names,
    )
    return replace(spec, layers=with_experts(spec.layers, experts, sparse))


def corrected_router(config: ModelConfig) -> RouterSpec:
    """Describe DeepSeek-V3's router; no file may name another."""
    if config.get("topk_method", "noaux_tc") != "noaux_tc":
        raise refuse(config, "topk_method", "corrects its choice of experts (noaux_tc)")
    return grouped_router(config)


def _softmax_router(config: ModelConfig) -> RouterSpec:
    """Source: DeepSeek-V2, arXiv:2405.04434, section 2.2.2."""
    if flag(config, "norm_topk_prob"):
        raise refuse(config, "norm_topk_prob", "does not divide weights by their sum")
    method = config.require("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise refuse(config, "topk_method", "chooses greedy or group_limited_greedy")
    plain = RouterSpec(scale=number(config, "routed_scaling_factor"))
    if method == "greedy":
        return plain
    groups, kept = config.size("n_group"), config.size("topk_group")
    if kept > groups:
        raise refuse(config, "topk_group", f"has {groups} groups of experts")
    return replace(plain, groups=groups, groups_kept=kept)


def _scale(config: ModelConfig, head_dim: int) -> float:
    """Return the factor on q·k. YaRN's temperature of all dimensions joins it, twice.

    Source: DeepSeek-V2, arXiv:2405.04434, section 3.1.4, and Peng et al. 2023, arXiv:2309.00071.
    """
    rope = rope_of(config)
    scaled = rope.get("rope_type") or rope.get("type") or "default"
    if scaled == "default" or not rope.get("mscale_all_dim"):
        return float(head_dim**-0.5)
    factor = max(number(rope, "factor"), 1.0)
    temperature = 0.1 * number(rope, "mscale_all_dim") * math.log(factor) + 1.0
    return float(head_dim**-0.5 * temperature**2)
