"""Hunyuan V1, dense and with experts: Llama's shape, q and k of each head normed behind rotation.

Some files rotate by a base that `alpha` stretches once and for all. Defaults are those of
transformers' HunYuanDenseV1Config and HunYuanMoEV1Config.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext, MoeNames
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.llama import SHAPE, llama_spec
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    head_dim,
    interleaved,
    layer_specs,
    number,
    refuse,
    rope_key,
    rope_of,
    with_defaults,
)

DEFAULTS = {
    **{key: value for key, value in SHAPE.items() if key != "mlp_bias"},
    "vocab_size": 290943,
    "rms_norm_eps": 1e-5,
    "head_dim": None,
}
MOE_DEFAULTS = {**DEFAULTS, "num_experts": 1, "moe_topk": 1}
NAMES = WeightNames(
    qk_norm=("self_attn.query_layernorm", "self_attn.key_layernorm"), late_qk_norm=True
)
EXPERTS = MoeNames(
    router="mlp.gate.wg",
    shared_gate_up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared_down="mlp.shared_mlp.down_proj",
)
#: Keys of parts that files of this architecture could ask for, and the only value that is served.
ONLY: dict[str, Any] = {
    "use_qk_norm": True,
    "use_cla": False,
    "use_mla": False,
    "mlp_bias": False,
    "use_rotary_pos_emb": True,
    "norm_type": "rms",
    "position_embedding_xdrope": False,
    "add_classification_head": False,
}
MOE_ONLY: dict[str, Any] = {
    **ONLY,
    "use_mixed_mlp_moe": True,
    "num_shared_expert": 1,
    "moe_layer_num_skipped": 0,
    "norm_topk_prob": True,
}


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build HunYuanDenseV1ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    _check(config, ONLY)
    layers = _layers(config, ctx)
    if config.get("rope_interleave"):  # as Maincoder, whose GGUF files are such a model
        layers = interleaved(layers)
    return DenseDecoder(llama_spec(config, layers, names=NAMES), ctx)


def build_moe(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build HunYuanMoEV1ForCausalLM."""
    config = with_expert_defaults(config, MOE_DEFAULTS)
    _check(config, MOE_ONLY)
    values = {key: _uniform(config, key) for key in ("num_experts", "moe_topk")}
    config = replace(config, values={**config.values, **values})
    size = config.size("intermediate_size")
    if _uniform(config, "moe_intermediate_size") not in (None, size):
        raise refuse(config, "moe_intermediate_size", f"has experts of intermediate_size, {size}")
    router = RouterSpec(renormalize=True)
    experts = mixture(
        config,
        router,
        top_k="moe_topk",
        size="intermediate_size",
        shared_size=size,
        names=EXPERTS,
    )
    layers = with_experts(_layers(config, ctx), experts, lambda i: True)
    return DenseDecoder(llama_spec(config, layers, names=NAMES), ctx)


def _layers(config: ModelConfig, ctx: BuildContext) -> tuple[LayerSpec, ...]:
    """Describe layers; a fixed `alpha` of files that say "dynamic" stretches the base.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.1.
    """
    name, rope = rope_key(config), rope_of(config)
    kind = rope.get("rope_type") or rope.get("type")
    if kind == "dynamic" and rope.get("alpha"):
        dim = head_dim(config)
        if dim < 4:
            raise refuse(config, "head_dim", "stretches its base over 4 channels or more")
        given = rope.get("rope_theta") or config.get("rope_theta", 10_000.0)
        theta = number(replace(rope, values={"rope_theta": given}), "rope_theta")
        stretched = theta * number(rope, "alpha") ** (dim / (dim - 2))
        fixed = {"rope_type": "default", "rope_theta": stretched}
        config = replace(config, values={**config.values, name: fixed})
    layers = layer_specs(config, ctx)
    if any(layer.rotation is None or layer.rotation.attention_factor != 1.0 for layer in layers):
        raise refuse(config, name, "norms q and k behind a rotation, which may not scale them")
    return layers


def _uniform(config: ModelConfig, key: str) -> Any:
    """Return a value that files may have once for all layers, or as a list of equal ones."""
    value = config.get(key)
    if not isinstance(value, list):
        return value
    if not value or any(other != value[0] for other in value):
        raise refuse(config, key, "has equal experts in all layers")
    return value[0]


def _check(config: ModelConfig, only: dict[str, Any]) -> None:
    """Refuse parts that this description does not have."""
    for key, served in only.items():
        if _uniform(config, key) not in (None, served):
            raise refuse(config, key, f"is served with {served!r} alone")
