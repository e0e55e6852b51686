"""Nemotron-H, Nemotron Nano 2 and Nemotron 3: layers of one block each, a Mamba-2 block, attention
that rotates nothing, an MLP of squared ReLU, or experts of it.

Experts of Nemotron 3 Super take latents, which two matrices make of hidden states and back.

Defaults are those of transformers' NemotronHConfig. What predicts further tokens has the form that
vLLM's module `nemotron_h_mtp` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from hotshoe.layers import BuildContext, Mixture, MoeNames
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import LISTED, add_further
from hotshoe_models.mixtures import grouped_router, mixture
from hotshoe_models.spec import LayerSpec, StateBlock, WeightNames
from hotshoe_models.states import state_block
from hotshoe_models.values import (
    PLAIN_ACTIVATIONS,
    activation,
    count,
    decoder_spec,
    flag,
    number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 131072,
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "ssm_state_size": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "n_groups": 8,
    "conv_kernel": 4,
    "time_step_min": 0.001,
    "use_bias": False,
    "use_conv_bias": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 7688,
    "moe_shared_expert_intermediate_size": 7688,
    "moe_latent_size": None,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 0,
}
KEYS = {
    "heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "groups": "n_groups",
    "state": "ssm_state_size",
    "conv": "conv_kernel",
    "activation": "mamba_hidden_act",
}
#: Mixers, by the letters of older files and the names of later ones.
MIXERS = {
    "M": "state",
    "mamba": "state",
    "linear_attention": "state",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "experts",
    "moe": "experts",
}
FURTHER_LISTS = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
LISTS = ("layers_block_type", "layer_types", "hybrid_override_pattern")
NAMES = WeightNames(
    embedding="backbone.embeddings",
    final_norm="backbone.norm_f",
    layer="backbone.layers.{}.",
    input_norm="norm",
    qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
    o="mixer.o_proj",
    gate_up=("mixer.up_proj",),
    down="mixer.down_proj",
    bare=(r"^model\.", "backbone."),
)
EXPERTS = MoeNames(
    router="mixer.gate",
    correction="mixer.gate.e_score_correction_bias",
    gate_up=("mixer.experts.{}.up_proj",),
    down="mixer.experts.{}.down_proj",
    shared_gate_up=("mixer.shared_experts.up_proj",),
    shared_down="mixer.shared_experts.down_proj",
    latents=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build NemotronHForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        _layers(config, _mixers(config, LISTS)),
        activation=activation(config, "mlp_hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        norm_eps=number(config, "layer_norm_epsilon"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        state=_state(config, ctx),
        names=NAMES,
    )
    ctx.weights.ignore([r"^mtp\."], "layers that predict further tokens")
    model, further = DenseDecoder(spec, ctx), count(config, "num_nextn_predict_layers")
    own = _layers(config, _further_mixers(config)) if further else ()
    further = min(further, 1)  # of several, no published code says how they are numbered
    names = replace(LISTED, blocks=len(own))
    return add_further(model, spec, ctx, further, names, "mtp.layers.{}.", own)


def _layers(config: ModelConfig, mixers: Sequence[str]) -> tuple[LayerSpec, ...]:
    experts = _experts(config) if "experts" in mixers else None
    return tuple(
        LayerSpec(None, mixer="mlp", mixture=experts, mlp=False)
        if mixer == "experts"
        else LayerSpec(None, mixer=mixer, mlp=False)
        for mixer in mixers
    )


def _experts(config: ModelConfig) -> Mixture:
    """Describe experts without gates, and the one that all tokens share."""
    if flag(config, "mlp_bias"):
        raise refuse(config, "mlp_bias", "has experts without biases")
    return mixture(
        config,
        grouped_router(config),
        experts="n_routed_experts",
        activation=activation(config, "mlp_hidden_act", PLAIN_ACTIVATIONS),
        gated=False,
        shared_size=config.size("moe_shared_expert_intermediate_size"),
        latent_size=optional_size(config, "moe_latent_size") or 0,
        names=EXPERTS,
    )


def _further_mixers(config: ModelConfig) -> list[str]:
    """Return the mixers of what predicts further tokens, whose blocks are numbered as layers."""
    default = {} if any(map(config.get, FURTHER_LISTS)) else {FURTHER_LISTS[0]: ["*", "E"]}
    mixers = _mixers(replace(config, values={**config.values, **default}), FURTHER_LISTS)
    if "state" in mixers or "attention" not in mixers:
        named = next((name for name in FURTHER_LISTS if config.get(name)), FURTHER_LISTS[0])
        raise refuse(config, named, "needs attention and no states, to take drafts back")
    return mixers


def _mixers(config: ModelConfig, lists: Sequence[str]) -> list[str]:
    """Return the mixer of each layer; the number of layers is that of the list."""
    name = next((name for name in lists if config.get(name)), lists[0])
    given = config.require(name)
    if not isinstance(given, str | list):
        raise refuse(config, name, "needs a list of layers")
    for kind in given:
        if not isinstance(kind, str) or kind not in MIXERS:
            raise refuse(config, name, f"knows only {', '.join(MIXERS)}")
    return [MIXERS[kind] for kind in given]


def _state(config: ModelConfig, ctx: BuildContext) -> StateBlock:
    """Describe the Mamba-2 blocks, whose steps of time have a least length and no greatest."""
    bias = flag(config, "use_bias")
    limits = {"time_step_limit": [number(config, "time_step_min"), inf]}
    return state_block(
        replace(config, values={**config.values, **limits}),
        ctx,
        KEYS,
        inner=config.size("mamba_num_heads") * config.size("mamba_head_dim"),
        eps=number(config, "layer_norm_epsilon"),
        name="mixer",
        in_bias=bias,
        conv_bias=flag(config, "use_conv_bias"),
        out_bias=bias,
    )
