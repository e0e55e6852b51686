"""Kolibri 1: EXAONE's attention, norms on both sides of each block, and experts that a token
chooses by corrected logits.

Defaults are those of transformers' Kolibri1Config.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.exaone import exaone_layers
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.qwen import QWEN3_NAMES
from hotshoe_models.values import FULL, SLIDING, decoder_spec, flag, layer_types

DEFAULTS = {
    "vocab_size": 128000,
    "hidden_size": 2560,
    "num_hidden_layers": 50,
    "num_attention_heads": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": 513,
    "layer_types": None,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 6,
    "num_experts": 384,
    "norm_topk_prob": False,
}
#: Every so-manieth layer attends to everything.
PATTERN = 5
NAMES = replace(
    QWEN3_NAMES, post_attention_norm="post_self_attn_layernorm", post_mlp_norm="post_mlp_layernorm"
)
#: Names that published files have, by those of other families.
RENAMED = {
    r"\.moe\.router\.expert_bias$": ".mlp.gate.e_score_correction_bias",
    r"\.post_attn_norm\.": ".post_self_attn_layernorm.",
    r"\.post_ffn_norm\.": ".post_mlp_layernorm.",
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Kolibri1ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    types = layer_types(config, lambda i: SLIDING if (i + 1) % PATTERN else FULL)
    experts = mixture(
        config,
        RouterSpec("sigmoid", renormalize=flag(config, "norm_topk_prob")),
        shared_size=config.size("shared_expert_intermediate_size"),
        logit_correction=True,
    )
    layers = with_experts(exaone_layers(config, ctx, types), experts, lambda i: True)
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    spec = decoder_spec(config, layers, intermediate_size=0, names=NAMES)
    return DenseDecoder(spec, ctx)
