"""openPangu Ultra MoE 718B: DeepSeek-V3's shape with keys of its own, routers without groups, and
norms on both sides of each block. Pangu Pro MoE 72B: Llama's layers with biases on attention, and
experts in groups, of each of which a token takes one.

Sources: the code and the configuration classes beside these checkpoints, and vLLM Ascend's module
`pangu_moe` for the latter.
"""

from dataclasses import fields, replace

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import SHARED, latent_spec, with_mixtures
from hotshoe_models.llama import SHAPE
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.published import respelled
from hotshoe_models.values import (
    count,
    decoder_spec,
    flag,
    layer_specs,
    number,
    refuse,
    unused_layers,
)
from hotshoe_models.winners import Winners

KEYS = {
    "attention_q_lora_dim": "q_lora_rank",
    "attention_kv_lora_dim": "kv_lora_rank",
    "attention_qk_dim": "qk_nope_head_dim",
    "attention_qk_rope_dim": "qk_rope_head_dim",
    "attention_v_dim": "v_head_dim",
    "num_routed_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "num_dense_layers": "first_k_dense_replace",
    "num_mtp_layers": "num_nextn_predict_layers",
}
DEFAULTS = {
    **SHARED,
    "vocab_size": 153600,
    "hidden_size": 7680,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 25_600_000.0,
    "rope_interleave": True,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "router_enable_expert_bias": False,
    "sandwich_norm": False,
    "num_nextn_predict_layers": 1,
}
PRO_DEFAULTS = {
    **SHAPE,
    "vocab_size": 153376,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "mlp_only_layers": None,
}
SHARED_EXPERT = MoeNames(
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down="mlp.shared_expert.down_proj",
)
#: What later models of the same class have.
LATER = ("param_sink_number", "use_mhc", "use_mome", "index_topk", "sliding_window")
LATER += ("sliding_window_list", "block_post_layernorm_idx")


def build_ultra(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PanguUltraMoEForCausalLM."""
    config = with_expert_defaults(respelled(config, KEYS), DEFAULTS)
    for key in LATER:
        if config.get(key):
            raise refuse(config, key, "is served without it")
    dense = count(config, "first_k_dense_replace")
    spec = with_mixtures(config, latent_spec(config, ctx), _router, lambda i: i >= dense)
    if flag(config, "sandwich_norm"):
        names = replace(
            spec.names,
            post_attention_norm="post_attention_layernorm",
            mlp_norm="pre_mlp_layernorm",
            post_mlp_norm="post_mlp_layernorm",
        )
        spec = replace(spec, names=names)
    return DenseDecoder(unused_layers(config, spec, "num_nextn_predict_layers"), ctx)


def _router(config: ModelConfig) -> RouterSpec:
    return RouterSpec(
        "sigmoid",
        renormalize=flag(config, "norm_topk_prob"),
        scale=number(config, "routed_scaling_factor"),
        correction=flag(config, "router_enable_expert_bias"),
    )


def build_pro(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build PanguProMoEForCausalLM. A file says of its experts' sizes, and how it rotates."""
    config = with_expert_defaults(config, PRO_DEFAULTS)
    chosen, dense = config.size("num_experts_per_tok"), config.get("mlp_only_layers") or []
    if config.size("num_experts") % chosen:
        raise refuse(config, "num_experts_per_tok", "has so many groups of experts of equal size")
    if not isinstance(dense, list):
        raise refuse(config, "mlp_only_layers", "needs a list of layers")
    plain = mixture(
        config,
        RouterSpec(),
        shared_size=count(config, "shared_expert_intermediate_size"),
        names=SHARED_EXPERT,
    )
    experts = Winners(**{part.name: getattr(plain, part.name) for part in fields(plain)})
    layers = with_experts(layer_specs(config, ctx), experts, lambda i: i not in dense)
    return DenseDecoder(decoder_spec(config, layers, qkv_bias=True, o_bias=True), ctx)
