"""Step 3 (text): q made of narrow latents, one key for all heads, experts beside a shared one.

Defaults are those of the published Step3TextConfig. Sources: that class, and vLLM's module
`step3_text` for the names of tensors.
"""

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import SPARSE, mixture, with_expert_defaults, with_experts
from hotshoe_models.published import respelled
from hotshoe_models.step import EXPERTS, RENAMED, listed_experts
from hotshoe_models.values import decoder_spec, flag, layer_specs, refuse

KEYS = {
    "num_attention_groups": "num_key_value_heads",
    "max_position_embedding": "max_position_embeddings",
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
}
DEFAULTS = {
    "vocab_size": 128815,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "share_q_dim": 2048,
    "hidden_act": "silu",
    "max_position_embeddings": 65536,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "moe_intermediate_size": 5120,
    "n_routed_experts": 48,
    "num_experts_per_tok": 3,
    "share_expert_dim": 5120,
    "norm_expert_weight": False,
    "moe_layers_enum": [*range(4, 60)],
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Step3TextForCausalLM, also as the text part of Step3VLForConditionalGeneration."""
    config = with_expert_defaults(respelled(config, KEYS), DEFAULTS)
    if config.size("num_key_value_heads") != 1:
        raise refuse(config, "num_key_value_heads", "has one key for all heads")
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    experts = mixture(
        config,
        RouterSpec(renormalize=flag(config, "norm_expert_weight")),
        experts="n_routed_experts",
        shared_size=config.size("share_expert_dim"),
        names=EXPERTS,
    )
    kinds = listed_experts(config, config.size("num_hidden_layers"))
    layers = tuple(replace(layer, mixer="narrow") for layer in layer_specs(config, ctx))
    layers = with_experts(layers, experts, lambda i: kinds[i] == SPARSE)
    differences: dict[str, Any] = {"q_dim": config.size("share_q_dim")}
    return DenseDecoder(decoder_spec(config, layers, **differences), ctx)
