"""GLM-4.7 Flash: DeepSeek-V3's shape, with a list of the layers that have experts.

Defaults are those of transformers' Glm4MoeLiteConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import SHARED, corrected_router, latent_spec, v3_decoder, with_mixtures
from hotshoe_models.mixtures import sparse_types, with_expert_defaults

DEFAULTS = {
    **SHARED,
    "vocab_size": 154880,
    "hidden_size": 2048,
    "intermediate_size": 10240,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 20,
    "num_key_value_heads": 20,
    "n_shared_experts": 1,
    "n_routed_experts": 64,
    "routed_scaling_factor": 1.8,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "max_position_embeddings": 202752,
    "rms_norm_eps": 1e-5,
    "rope_interleave": True,
    "mlp_layer_types": None,
    "num_nextn_predict_layers": 0,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Glm4MoeLiteForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    spec = with_mixtures(config, latent_spec(config, ctx), corrected_router, sparse_types(config))
    return v3_decoder(config, spec, ctx)
