"""Grok 1: experts of GELU in every layer, norms on both sides of each block, capped scores.

Routers do not divide a token's weights by their sum. Defaults are those of the published
Grok1Config. Sources: the code beside these checkpoints, and xAI's own, which agrees but for the
form of GELU. Grok 2's files name another class, and hold parts of each matrix for eight ranks.
"""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import decoder_spec, layer_specs, number, refuse

DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 6144,
    "intermediate_size": 32768,
    "num_hidden_layers": 64,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attn_output_multiplier": 0.08838834764831845,
    "max_attn_value": 30.0,
    "embedding_multiplier_scale": 78.38367176906169,
    "output_multiplier_scale": 0.5773502691896257,
    "num_experts_per_tok": 2,
    "num_experts": 8,
}
NAMES = WeightNames(
    input_norm="pre_attn_norm",
    post_attention_norm="post_attn_norm",
    mlp_norm="pre_moe_norm",
    post_mlp_norm="post_moe_norm",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    o="attn.o_proj",
)
EXPERTS = MoeNames(
    router="moe_block.gate",
    gate_up=("moe_block.experts.{}.linear", "moe_block.experts.{}.linear_v"),
    down="moe_block.experts.{}.linear_1",
)
#: Of Grok 2.
LATER = ("residual_moe", "attn_temperature_len", "final_logit_softcapping")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Grok1ModelForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    for key in (*LATER, "router_logit_softcapping"):
        if config.get(key):
            raise refuse(config, key, "is served without it, as Grok 1 is")
    experts = mixture(
        config, RouterSpec(), size="intermediate_size", activation="gelu", names=EXPERTS
    )
    spec = decoder_spec(
        config,
        with_experts(layer_specs(config, ctx), experts, lambda i: True),
        activation="gelu",
        attention_scale=number(config, "attn_output_multiplier"),
        attention_softcap=number(config, "max_attn_value"),
        embedding_scale=number(config, "embedding_multiplier_scale"),
        logits_divisor=1 / number(config, "output_multiplier_scale"),
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)
