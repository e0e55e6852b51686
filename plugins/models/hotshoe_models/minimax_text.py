"""MiniMax Text 01 and M1: lightning attention, every eighth layer attention, experts in each.

Defaults are those of transformers' MiniMaxConfig; files of the first release have other keys.
"""

from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.deltas import LINEAR
from hotshoe_models.lightning import BlendDecoder
from hotshoe_models.minimax import with_rotary_dim
from hotshoe_models.mixtral import NAMES as EXPERTS
from hotshoe_models.mixtral import STACKED
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.values import (
    FULL,
    activation,
    decoder_spec,
    layer_specs,
    layer_types,
    number,
    refuse,
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
    "layer_types": None,
    "full_attn_alpha_factor": 1,
    "full_attn_beta_factor": 1,
    "linear_attn_alpha_factor": 1,
    "linear_attn_beta_factor": 1,
    "mlp_alpha_factor": 1,
    "mlp_beta_factor": 1,
}
DEFAULT_THETA = 1_000_000.0
#: Factors' keys of the first release.
SPELLINGS = {
    f"layernorm_{old}_{factor}": f"{new}_{factor}_factor"
    for old, new in (
        ("full_attention", "full_attn"),
        ("linear_attention", "linear_attn"),
        ("mlp", "mlp"),
    )
    for factor in ("alpha", "beta")
}
#: Mixers, by the keys of their factors.
BLENDS = {"attention": "full_attn", "lightning": "linear_attn", "mlp": "mlp"}
#: What follows from sizes alone, and transformers stores.
UNREAD = r"\.self_attn\.(slope_rate|(query|key|diagonal)_decay)$"


def build(config: ModelConfig, ctx: BuildContext) -> BlendDecoder:
    """Build MiniMaxForCausalLM, MiniMaxText01ForCausalLM and MiniMaxM1ForCausalLM."""
    config = with_rotary_dim(with_expert_defaults(_respelled(config), DEFAULTS))
    if config.get("sliding_window") is not None:
        raise refuse(config, "sliding_window", "attends to the whole text")
    if activation(config, "hidden_act") != "silu":
        raise refuse(config, "hidden_act", "knows only silu in its lightning attention")
    experts = mixture(
        config,
        RouterSpec(renormalize=True),
        experts="num_local_experts",
        size="intermediate_size",
        names=EXPERTS,
    )
    types = layer_types(config, lambda i: LINEAR if i % 2 else FULL, (FULL, LINEAR))
    plain = layer_specs(
        config, ctx, [FULL] * len(types), partial_rotary=True, default_theta=DEFAULT_THETA
    )
    layers = tuple(
        replace(layer, mixer="lightning", rotation=None) if kind == LINEAR else layer
        for layer, kind in zip(plain, types, strict=True)
    )
    ctx.weights.rename(*STACKED)
    ctx.weights.ignore([UNREAD])
    spec = decoder_spec(config, with_experts(layers, experts, lambda i: True))
    factors = {
        mixer: (number(config, f"{key}_alpha_factor"), number(config, f"{key}_beta_factor"))
        for mixer, key in BLENDS.items()
    }
    return BlendDecoder(spec, ctx, factors)


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values = {SPELLINGS.get(key, key): value for key, value in config.values.items()}
    if config.get("postnorm", True) is not True:
        raise refuse(config, "postnorm", "norms what a block's result joins")
    if config.get("shared_intermediate_size", 0) not in (0, [0]):
        raise refuse(config, "shared_intermediate_size", "has no expert that all tokens share")
    attends = values.get("attn_type_list")
    if values.get("layer_types") is None and isinstance(attends, list):
        values["layer_types"] = [FULL if kind else LINEAR for kind in attends]
    return replace(config, values=values)
