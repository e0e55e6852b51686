"""Hunyuan V3 (Hy3): Qwen's attention, experts behind a sigmoid with correction, and a shared one.

Defaults are those of transformers' HYV3Config. The layer that predicts further tokens has the form
that vLLM's module `hy_v3_mtp` reads.
"""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import NORMED, add_further
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.mixtures import mixture, sparse_types, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.values import count, layer_specs, number, refuse, unused_layers

DEFAULTS = {
    **SHAPE,
    "vocab_size": 120832,
    "intermediate_size": 13312,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "num_experts": 192,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 1536,
    "router_scaling_factor": 2.826,
    "mlp_layer_types": None,
    "num_nextn_predict_layers": 0,
}
DEFAULT_THETA = 11_158_840.0
NAMES = MoeNames(
    router="mlp.router.gate",
    correction="mlp.expert_bias",
    shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build HYV3ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("moe_router_use_sigmoid", True) is not True:
        raise refuse(config, "moe_router_use_sigmoid", "scores experts by sigmoid alone")
    scale = number(config, "router_scaling_factor")
    experts = mixture(
        config,
        RouterSpec("sigmoid", renormalize=True, scale=scale, correction=True),
        shared_size=count(config, "num_shared_experts") * config.size("moe_intermediate_size"),
        names=NAMES,
    )
    for theirs, ours in (("shared_experts", "shared_mlp"), ("gate", "router.gate")):
        ctx.weights.rename(rf"\.mlp\.{theirs}\.", f".mlp.{ours}.")  # as transformers calls them
    layers = layer_specs(config, ctx, default_theta=DEFAULT_THETA)
    spec = llama_spec(
        config, with_experts(layers, experts, sparse_types(config)), names=QWEN3_NAMES
    )
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    return add_further(DenseDecoder(spec, ctx), spec, ctx, spec.further_layers, NORMED)
