"""Mixtral: Mistral's shape with experts in every layer.

Defaults are those of transformers' MixtralConfig.
"""

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    layer_specs,
    layer_types,
    optional_size,
)

DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": None,
    "hidden_act": "silu",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "sliding_window": None,
    "num_experts_per_tok": 2,
    "num_local_experts": 8,
}
DEFAULT_THETA = 1_000_000.0
#: Of Mixtral's block, which others have taken over.
BLOCK = "block_sparse_moe."
NAMES = MoeNames(
    router=f"{BLOCK}gate",
    correction=f"{BLOCK}e_score_correction_bias",
    gate_up=(BLOCK + "experts.{}.w1", BLOCK + "experts.{}.w3"),
    down=BLOCK + "experts.{}.w2",
)
#: What transformers 5 calls the block where it stacks experts.
STACKED = (r"\.mlp\.(?=gate\.|experts\.|e_score_correction_bias$)", f".{BLOCK}")


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build MixtralForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    window = optional_size(config, "sliding_window")
    types = layer_types(config, lambda i: FULL if window is None else SLIDING)
    layers = layer_specs(config, ctx, types, window, default_theta=DEFAULT_THETA)
    router = RouterSpec(renormalize=True)
    keys = {"experts": "num_local_experts", "size": "intermediate_size"}
    experts = mixture(config, router, names=NAMES, **keys)
    ctx.weights.rename(*STACKED)
    return DenseDecoder(decoder_spec(config, with_experts(layers, experts, lambda i: True)), ctx)
