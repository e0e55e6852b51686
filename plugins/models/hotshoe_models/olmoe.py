"""OLMoE: norms of q and k over all heads, experts in every layer. FlexOlmo: the same with norms
behind each block and none before, as in OLMo 2.

Defaults are those of transformers' OlmoeConfig and FlexOlmoConfig.
"""

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.olmo import NAMES as OLMO2
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import decoder_spec, flag, layer_specs, optional_number

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
FLEX_DEFAULTS = {
    **{key: value for key, value in DEFAULTS.items() if key != "clip_qkv"},
    "vocab_size": 100352,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-6,
    "num_experts_per_tok": 5,
    "num_experts": 7,
}
FLEX_THETA = 500_000.0
NAMES = WeightNames(qk_norm=("self_attn.q_norm", "self_attn.k_norm"), wide_qk_norm=True)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build OlmoeForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    return _decoder(config, ctx, layer_specs(config, ctx), NAMES)


def build_flex(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build FlexOlmoForCausalLM."""
    config = with_expert_defaults(config, FLEX_DEFAULTS)
    return _decoder(config, ctx, layer_specs(config, ctx, default_theta=FLEX_THETA), OLMO2)


def _decoder(
    config: ModelConfig, ctx: BuildContext, layers: tuple[LayerSpec, ...], names: WeightNames
) -> DenseDecoder:
    router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
    experts = mixture(config, router, size="intermediate_size")
    layers = with_experts(layers, experts, lambda i: True)
    bias = flag(config, "attention_bias")
    limit = optional_number(config, "clip_qkv")
    spec = decoder_spec(config, layers, qkv_bias=bias, o_bias=bias, qkv_limit=limit, names=names)
    return DenseDecoder(spec, ctx)
