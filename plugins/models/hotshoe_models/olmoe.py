"""OLMoE: norms of q and k over all heads, experts in every layer.

Defaults are those of transformers' OlmoeConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, refuse

DEFAULTS = {
    "vocab_size": 50304,
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": None,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "clip_qkv": None,
    "num_experts_per_tok": 8,
    "num_experts": 64,
    "norm_topk_prob": False,
}
NAMES = WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm"), wide_qk_norm=True)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OlmoeForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    if config.get("clip_qkv") is not None:
        raise refuse(config, "clip_qkv", "is served without limits on q, k and v")
    router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
    experts = mixture(config, router, size="intermediate_size")
    layers = with_experts(layer_specs(config, ctx), experts, lambda i: True)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, names=NAMES)
    return DenseDecoder(spec, ctx)
