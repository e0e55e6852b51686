"""Kimi-Linear: Kimi delta attention, some layers of latent attention without rotation, and experts.

Published files describe the layers in `linear_attn_config` and count them from 1; files that
transformers writes have keys of their own. Defaults are those of transformers' KimiLinearConfig.
Source: Kimi Team 2025, arXiv:2510.26692.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, DeltaNames, MoeNames, Rotation
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.deepseek import corrected_router, latent_spec
from hotshoe_models.deltas import LINEAR, delta_spec, equal_heads, mixed_types, with_deltas
from hotshoe_models.mixtures import mixture, with_experts
from hotshoe_models.spec import DeltaBlock, LayerSpec, Projection
from hotshoe_models.values import FULL, count, mapping, refuse, with_defaults

DEFAULTS = {
    "vocab_size": 163840,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.446,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 1048576,
    "linear_num_heads": 32,
    "linear_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
#: Other spellings of keys, by those that DeepSeek's files have.
SPELLINGS = {
    "num_experts": "n_routed_experts",
    "num_local_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
    "num_expert_group": "n_group",
    "moe_renormalize": "norm_topk_prob",
    "model_max_length": "max_position_embeddings",
    "moe_router_activation_func": "scoring_func",
}
#: Those within `linear_attn_config`.
WITHIN = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
EXPERTS = MoeNames(gate_up=("mlp.experts.{}.w1", "mlp.experts.{}.w3"), down="mlp.experts.{}.w2")
QKV = Projection((("q_proj", ("q",)), ("k_proj", ("k",)), ("v_proj", ("v",))))
CONV = ("q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight")
NAMES = DeltaNames(
    conv=CONV,
    decay_axes=(2, 1),
    norm="o_norm.weight",
)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build KimiLinearForCausalLM."""
    try:
        return _build(_respelt(config), ctx)
    except CheckpointError as error:
        raise CheckpointError(in_spelling_of(config, str(error))) from error


def in_spelling_of(config: ModelConfig, text: str) -> str:
    """Return a complaint with the keys that the file has."""
    within = mapping(config, "linear_attn_config")
    theirs = {SPELLINGS[key]: key for key in config.values if key in SPELLINGS}
    theirs |= {WITHIN[key]: f"linear_attn_config.{key}" for key in within if key in WITHIN}
    return re.sub(r"\w+", lambda found: theirs.get(found[0], found[0]), text)


def _build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    types, spec = mixed_types(config), latent_spec(config, ctx)
    if config.get("mla_use_nope", True) is not True:
        raise refuse(config, "mla_use_nope", "rotates nothing; true is needed")
    rope_dim = config.size("qk_rope_head_dim")
    still = Rotation((0.0,) * (rope_dim // 2))  # no angle at any position
    layers = with_deltas([LayerSpec(still, mixer="latent")] * len(types), types)
    experts = mixture(
        config,
        corrected_router(config),
        experts="n_routed_experts",
        shared_size=count(config, "n_shared_experts") * config.size("moe_intermediate_size"),
        names=EXPERTS,
    )
    sparse = _sparse(config)
    layers = with_experts(layers, experts, lambda i: sparse[i])
    ctx.weights.rename(r"\.block_sparse_moe\.", ".mlp.")
    ctx.weights.rename(r"\.forget_gate\.", ".")  # as transformers calls a module
    ctx.weights.ignore([r"^model\.mtp\."], "layers that predict further tokens")
    return DenseDecoder(replace(spec, layers=layers, delta=delta_block(config, ctx, NAMES)), ctx)


def _respelt(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that other families have."""
    values: dict[str, Any] = {SPELLINGS.get(k, k): v for k, v in config.values.items()}
    within = mapping(config, "linear_attn_config")
    values |= {WITHIN[key]: value for key, value in within.items() if key in WITHIN}
    values |= {"rope_interleave": False, "rope_parameters": None, "rope_scaling": None}
    config = with_defaults(replace(config, values=values), DEFAULTS)
    size = config.size("num_hidden_layers")
    types = config.get("layer_types") or [FULL if i and i % 4 == 0 else LINEAR for i in range(size)]
    if config.get("layer_types") is None and within.keys() & {"full_attn_layers", "kda_layers"}:
        types = _numbered(config, within, size)
    return equal_heads(replace(config, values={**config.values, "layer_types": types}))


def _numbered(config: ModelConfig, within: Mapping[str, Any], size: int) -> list[str]:
    """Return each layer's type by the lists of layers, which count from 1."""
    full = within.get("full_attn_layers", [])
    if not isinstance(full, list) or not all(type(i) is int and 1 <= i <= size for i in full):
        raise refuse(config, "linear_attn_config", f"needs numbers of its {size} layers")
    rest = [i for i in range(1, size + 1) if i not in full]
    others = within.get("kda_layers", rest)
    if (
        not isinstance(others, list)
        or len(others) != len(rest)
        or any(i not in others for i in rest)
    ):
        why = f"needs each of {size} layers in either full_attn_layers or kda_layers"
        raise refuse(config, "linear_attn_config", why)
    return [FULL if i + 1 in full else LINEAR for i in range(size)]


def _sparse(config: ModelConfig) -> list[bool]:
    """Tell which layers have experts."""
    size, dense = config.size("num_hidden_layers"), count(config, "first_k_dense_replace")
    if config.get("moe_layer_freq", 1) != 1:
        raise refuse(config, "moe_layer_freq", "has experts in every layer behind the dense ones")
    kinds = config.get("mlp_layer_types") or [
        "dense" if i < dense else "sparse" for i in range(size)
    ]
    if not isinstance(kinds, list) or len(kinds) != size:
        raise refuse(config, "mlp_layer_types", f"needs one entry for each of {size} layers")
    if not all(kind in ("dense", "sparse") for kind in kinds):
        raise refuse(config, "mlp_layer_types", "knows only dense and sparse")
    return [kind == "sparse" for kind in kinds]


def delta_block(
    config: ModelConfig, ctx: BuildContext, names: DeltaNames, floor: float | None = None
) -> DeltaBlock:
    """Describe Kimi delta attention; `floor` is the least logarithm of a decay."""
    delta = replace(delta_spec(config, ctx), decay="channel", gate="sigmoid", decay_floor=floor)
    rank = config.size("linear_head_dim")
    return DeltaBlock(
        delta=delta,
        projections=(
            QKV,
            Projection((("g_b_proj", ("z",)),), before="g_a_proj", rank=rank),
            Projection((("b_proj", ("beta",)),)),
            Projection((("f_b_proj", ("decay",)),), before="f_a_proj", rank=rank),
        ),
        name="self_attn",
        out="o_proj",
        names=names,
    )
