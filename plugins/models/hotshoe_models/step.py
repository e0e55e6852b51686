"""Step 3.5 and 3.7: a gate and a number of query heads for each kind of layer, clamped experts.

Published files describe layers by lists of their own, with entries for layers behind the last one
that predict further tokens, whose form is that of vLLM's module `step3p5_mtp`. Defaults are those
of transformers' Step3p7TextConfig.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

from hotshoe.layers import BuildContext, Mixture, MoeNames, before_silu
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.further import FurtherNames, add_further, further_type
from hotshoe_models.mixtures import DENSE, SPARSE, mixture, sparse_types, with_expert_defaults
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    mapping,
    number,
    optional_size,
    refuse,
    unused_layers,
)

DEFAULTS = {
    "vocab_size": 128815,
    "hidden_size": 4096,
    "intermediate_size": 11264,
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_sliding_attention_heads": None,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "query_pre_attn_scalar": None,
    "hidden_act": "silu",
    "max_position_embeddings": 128000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_parameters": None,
    "sliding_window": None,
    "layer_types": None,
    "mlp_layer_types": None,
    "moe_intermediate_size": 1280,
    "share_expert_dim": 1280,
    "n_routed_experts": 288,
    "num_experts_per_tok": 8,
    "moe_router_scaling_factor": 1.0,
    "swiglu_limits": None,
    "swiglu_limits_shared": None,
    "num_nextn_predict_layers": 0,
}
DEFAULT_THETA = 10_000.0
#: What published files call keys.
SPELLINGS = {
    "num_attention_groups": "num_key_value_heads",
    "moe_num_experts": "n_routed_experts",
    "moe_top_k": "num_experts_per_tok",
    "share_expert_dims": "share_expert_dim",
}
#: Keys with an entry for each layer.
LISTS = ("layer_types", "mlp_layer_types", "swiglu_limits", "swiglu_limits_shared")
LISTS += ("rope_theta", "partial_rotary_factors")
#: What layers with a window have of their own.
OTHER = "attention_other_setting"
NAMES = WeightNames(
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"), gate="self_attn.g_proj", head_gates=True
)
#: What the layer that predicts further tokens has of its own.
FURTHER = FurtherNames(
    final_norm="transformer.shared_head.norm",
    lm_head="transformer.shared_head.output",
    stored_join=True,
)
EXPERTS = MoeNames()
#: What published files call the parts of a mixture.
RENAMED = {
    r"\.moe\.gate\.weight$": ".mlp.gate.weight",
    r"\.moe\.router_bias$": f".{EXPERTS.correction}",
    r"\.moe\.(gate|up|down)_proj\.weight(_scale_inv|)$": r".mlp.experts.\1_proj\2",
    r"\.share_expert\.": ".mlp.shared_experts.",
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Step3p5ForCausalLM, also as the text part of Step3p7ForConditionalGeneration."""
    config = _respelled(config)
    for key in ("attention_bias", "mlp_bias"):
        if flag(config, key):
            raise refuse(config, key, "has no biases")
    for pattern, name in RENAMED.items():
        ctx.weights.rename(pattern, name)
    scale = config.get("query_pre_attn_scalar")
    scale = number(config, "query_pre_attn_scalar") if scale else config.size("head_dim")
    spec = decoder_spec(
        config,
        _layers(config, ctx),
        gated_attention=True,
        norm_offset=1.0,
        attention_scale=scale**-0.5,
        names=NAMES,
    )
    spec = unused_layers(config, spec, "num_nextn_predict_layers")
    own = [_layers(_further(config, i), ctx)[0] for i in range(spec.further_layers)]
    return add_further(DenseDecoder(spec, ctx), spec, ctx, spec.further_layers, FURTHER, own=own)


def _further(config: ModelConfig, i: int) -> ModelConfig:
    """Return the configuration of one layer: that of this number that predicts further tokens."""
    kind = further_type(config, "mtp_layer_types", FULL, (FULL, SLIDING), i)
    mlp = further_type(config, "mtp_mlp_layer_types", DENSE, (DENSE, SPARSE), i)
    own = {"num_hidden_layers": 1, "layer_types": [kind], "mlp_layer_types": [mlp]}
    for key in ("swiglu_limits", "swiglu_limits_shared"):
        listed = config.get(f"mtp_{key}")
        own[key] = (listed[i : i + 1] or listed[-1:]) if isinstance(listed, list) else listed
    return replace(config, values={**config.values, **own})


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    types, window = layer_types(config, lambda i: FULL), optional_size(config, "sliding_window")
    layers = layer_specs(
        config, ctx, types, window, partial_rotary=True, default_theta=DEFAULT_THETA
    )
    key, shared = "num_sliding_attention_heads", config.size("num_key_value_heads")
    heads = config.size(key, config.size("num_attention_heads"))
    if heads % shared:
        raise refuse(config, key, f"has {shared} kv heads to share them")
    experts, routed = _experts(config), _limits(config, "swiglu_limits")
    common, sparse = _limits(config, "swiglu_limits_shared"), sparse_types(config)
    found: list[LayerSpec] = []
    for i, (layer, kind) in enumerate(zip(layers, types, strict=True)):
        if kind == SLIDING:
            layer = replace(layer, num_heads=heads)
        if sparse(i):
            layer = replace(layer, mixture=_limited(experts, routed[i], common[i]))
        elif common[i]:
            raise refuse(config, "swiglu_limits_shared", f"clamps experts, and layer {i} has none")
        found.append(layer)
    return tuple(found)


def _experts(config: ModelConfig) -> Mixture:
    scale = number(config, "moe_router_scaling_factor")
    return mixture(
        config,
        RouterSpec("sigmoid", renormalize=True, scale=scale, correction=True),
        experts="n_routed_experts",
        shared_size=config.size("share_expert_dim"),
        names=EXPERTS,
    )


def _limited(experts: Mixture, routed: float, common: float) -> Mixture:
    """Clamp what opens experts, and what passes; 0 clamps nothing."""
    if routed:
        experts = replace(experts, limit=routed, gate_limit=before_silu(routed))
    if routed != common:
        limits = (common, before_silu(common)) if common else (inf, inf)
        experts = replace(experts, shared_limits=limits)
    return experts


def _limits(config: ModelConfig, key: str) -> list[float]:
    """Return a limit for each layer, 0 for none."""
    count = config.size("num_hidden_layers")
    limits = config.get(key) or [0.0] * count
    if not isinstance(limits, list) or len(limits) != count:
        raise refuse(config, key, f"needs a limit for each of {count} layers")
    limits = [0.0 if limit is None else limit for limit in limits]
    if not all(type(limit) in (int, float) and 0 <= limit < 100 for limit in limits):
        raise refuse(config, key, "needs limits of at least 0, below 100")
    return [float(limit) for limit in limits]


def _respelled(config: ModelConfig) -> ModelConfig:
    """Return the configuration by the keys that transformers writes."""
    values: dict[str, Any] = dict(config.values)
    for key, name in SPELLINGS.items():
        if key in values:
            values.setdefault(name, values[key])
    config = with_expert_defaults(replace(config, values=values), DEFAULTS)
    values, count = dict(config.values), config.size("num_hidden_layers")
    if values["mlp_layer_types"] is None:
        values["mlp_layer_types"] = listed_experts(config, count)
    for key in LISTS:
        if isinstance(values.get(key), list):
            if behind := values[key][count:]:
                values[f"mtp_{key}"] = behind
            values[key] = values[key][:count]
    other = mapping(config, OTHER)
    for key in ("num_attention_groups", "head_dim"):
        if other.get(key, own := values[SPELLINGS.get(key, key)]) != own:
            raise refuse(config, OTHER, f"has the same {key} in all layers")
    if values["num_sliding_attention_heads"] is None:
        values["num_sliding_attention_heads"] = other.get("num_attention_heads")
    if values["rope_parameters"] is None:
        values["rope_parameters"] = _rope(replace(config, values=values))
        values.pop("rope_scaling", None)
    return replace(config, values=values)


def listed_experts(config: ModelConfig, count: int) -> list[str]:
    """Return which layers have experts: those that `moe_layers_enum` lists, or all from 3 on.

    Behind them, the list says it of layers that predict further tokens.
    """
    key = "moe_layers_enum"
    listed = config.get(key)
    if listed is None:
        return [SPARSE if i >= 3 else DENSE for i in range(count)] + [DENSE]
    named = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(named, list) or not all(str(i).strip().isdecimal() for i in named):
        raise refuse(config, key, "needs numbers of layers, in a list or with commas between")
    further = max(1, int(config.get("num_nextn_predict_layers") or 0))
    sparse = {int(n) for n in named}
    return [SPARSE if i in sparse else DENSE for i in range(count + further)]


def _rope(config: ModelConfig) -> Mapping[str, Any]:
    """Return the parameters of rotation by kind of layer, as its first one has them."""
    types = layer_types(config, lambda i: FULL)
    found: dict[str, Any] = {}
    for kind in sorted(set(types)):
        found[kind] = {"rope_type": "default"}
        for key, name in (
            ("rope_theta", "rope_theta"),
            ("partial_rotary_factors", "partial_rotary_factor"),
        ):
            value = config.get(key)
            if isinstance(value, list) and len(value) == len(types):
                value = value[types.index(kind)]
            if value is not None:
                found[kind][name] = value
    if FULL in found:
        found[FULL] |= mapping(config, "rope_scaling")
    return found
