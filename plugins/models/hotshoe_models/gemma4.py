"""Gemma 4 (text): heads of two sizes, layers that share keys and values, per-layer inputs, and
experts beside the MLP, as far as a variant has them.

Gemma 4 Unified (12B) has neither per-layer inputs nor experts.

Defaults are those of transformers' Gemma4TextConfig and Gemma4UnifiedTextConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hotshoe.layers import BuildContext, Mixture, MoeNames, Rotation, Stacked
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.gemma import GEMMA3_NAMES
from hotshoe_models.gemma4_layers import Gemma4Decoder
from hotshoe_models.mixtures import mixture
from hotshoe_models.spec import DecoderSpec, LayerSpec
from hotshoe_models.stream_specs import PerLayerSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    activation,
    count,
    decoder_spec,
    flag,
    layer_types,
    mapping,
    optional_number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 262144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "sliding_window": 512,
    "layer_types": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": None,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 0,
    "enable_moe_block": False,
    "use_double_wide_mlp": False,
    "num_experts": None,
    "top_k_experts": None,
    "moe_intermediate_size": None,
}
#: What Gemma 4 Unified does without.
PARTS = {
    "vocab_size_per_layer_input",
    "hidden_size_per_layer_input",
    "enable_moe_block",
    "num_experts",
    "top_k_experts",
    "moe_intermediate_size",
}
UNIFIED_DEFAULTS = {
    **{key: value for key, value in DEFAULTS.items() if key not in PARTS},
    "max_position_embeddings": 262144,
    "sliding_window": 1024,
    "use_bidirectional_attention": "vision",
}
#: Of layers that attend to everything, where no `per_layer_config` says it.
GLOBAL_HEAD_DIM = 512
ROPE = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}
#: In files that say nothing of types, every so-manieth layer attends to everything.
PATTERN = 6
EXPERTS = MoeNames(
    router="router.proj",
    stacked=Stacked(
        gate_up="experts.gate_up_proj",
        down="experts.down_proj",
        output_scale="router.per_expert_scale",
    ),
)
#: Of files in which factors of experts are with their second matrices.
BY_NAME = MoeNames(
    router="router.proj",
    gate_up=("experts.{}.gate_proj", "experts.{}.up_proj"),
    down="experts.{}.down_proj",
)


def build(config: ModelConfig, ctx: BuildContext) -> Gemma4Decoder:
    """Build Gemma4ForCausalLM."""
    return _decoder(with_defaults(config, DEFAULTS), ctx)


def build_unified(config: ModelConfig, ctx: BuildContext) -> Gemma4Decoder:
    """Build Gemma4UnifiedForCausalLM."""
    return _decoder(with_defaults(config, UNIFIED_DEFAULTS), ctx)


def _decoder(config: ModelConfig, ctx: BuildContext) -> Gemma4Decoder:
    return Gemma4Decoder(described(config, ctx), ctx)


def kinds(config: ModelConfig) -> list[str]:
    """Return the kind of each layer."""
    types = layer_types(config, lambda i: SLIDING if (i + 1) % PATTERN else FULL)
    return [*types[:-1], FULL]  # as transformers reads every file


def described(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe a decoder, with the defaults of its class."""
    if config.get("use_bidirectional_attention") not in (None, "vision"):
        raise refuse(config, "use_bidirectional_attention", "attends to earlier tokens only")
    layers = _layers(config, ctx, kinds(config))
    bias = flag(config, "attention_bias")
    ctx.weights.rename(r"\.router\.scale$", ".router.scale.weight")
    return decoder_spec(
        config,
        layers,
        activation=activation(config, "hidden_activation"),
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=1.0,
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        embedding_scale=rounded(ctx, config.size("hidden_size") ** 0.5),
        value_norm=True,
        per_layer=per_layer(config, ctx),
        names=GEMMA3_NAMES,
    )


def rounded(ctx: BuildContext, factor: float) -> float:
    """Round a factor to the model's type before it multiplies, as in training."""
    return torch.tensor(factor, dtype=ctx.torch_dtype).item()


def per_layer(config: ModelConfig, ctx: BuildContext) -> PerLayerSpec | None:
    """Read the sizes of per-layer inputs; None for a model without."""
    if config.get("hidden_size_per_layer_input") in (None, 0):
        return None
    size = config.size("hidden_size_per_layer_input")
    rows = config.size("vocab_size_per_layer_input")
    return PerLayerSpec(size=size, rows=rows, scale=rounded(ctx, size**0.5))


def shared_layers(config: ModelConfig, ctx: BuildContext, types: list[str]) -> list[int | None]:
    """Return, for each layer, the one whose keys and values it reads; None for its own.

    The last `num_kv_shared_layers` read those of the last layer of their type before them.

    Raises:
        CheckpointError: There is none of their type.
    """
    own = len(types) - count(config, "num_kv_shared_layers")
    if own <= 0 or set(types[:own]) != set(types):
        raise refuse(config, "num_kv_shared_layers", "needs a layer of each type that has its own")
    last = {kind: i for i, kind in enumerate(types[:own])}
    unread = [rf"\.layers\.{i}\.self_attn\.[kv]_(proj|norm)\." for i in range(own, len(types))]
    ctx.weights.ignore(unread)  # which some checkpoints keep nevertheless
    return [None] * own + [last[kind] for kind in types[own:]]


def _layers(config: ModelConfig, ctx: BuildContext, types: list[str]) -> tuple[LayerSpec, ...]:
    sizes, shares = _head_sizes(config, types), shared_layers(config, ctx, types)
    ropes = mapping(config, "rope_parameters") or ROPE
    if not all(isinstance(ropes.get(kind), Mapping) for kind in set(types)):
        raise refuse(config, "rope_parameters", f"needs objects {FULL} and {SLIDING}")
    values = {**config.values, "rope_parameters": ropes, "rope_scaling": None}
    rotations: dict[str, Rotation] = {}
    for kind in sorted(set(types)):
        dim = sizes[kind][0]
        rotation = Rotation.from_config(values, dim, ctx.max_model_len, layer_type=kind)
        if rotation.rotary_dim != dim:
            raise refuse(config, "rope_parameters", "rotates whole heads only")
        rotations[kind] = rotation
    window = config.size("sliding_window") if SLIDING in types else None
    experts = _experts(config) if flag(config, "enable_moe_block") else None
    wide = 2 if flag(config, "use_double_wide_mlp") else 1
    alike = flag(config, "attention_k_eq_v")
    return tuple(
        LayerSpec(
            rotations[kind],
            window if kind == SLIDING else None,
            mixture=experts,
            shares=source,
            keys_as_values=alike and kind == FULL and source is None,
            head_dim=sizes[kind][0],
            num_kv_heads=sizes[kind][1],
            intermediate_size=config.size("intermediate_size") * (1 if source is None else wide),
        )
        for kind, source in zip(types, shares, strict=True)
    )


def _head_sizes(config: ModelConfig, types: list[str]) -> dict[str, tuple[int, int]]:
    """Return head size and number of kv heads by type of layer, in either spelling.

    Raises:
        CheckpointError: Layers of one type differ, or differ in something else.
    """
    plain = {"head_dim": config.size("head_dim"), "num_key_value_heads": _kv_heads(config)}
    if config.get("per_layer_config") is None:
        wide: dict[str, Any] = {"head_dim": config.size("global_head_dim", GLOBAL_HEAD_DIM)}
        heads = optional_size(config, "num_global_key_value_heads")
        if heads is not None and flag(config, "attention_k_eq_v"):
            wide["num_key_value_heads"] = heads
        given = {str(i): wide for i, kind in enumerate(types) if kind == FULL}
    else:
        given = dict(mapping(config, "per_layer_config"))
    found: dict[str, tuple[int, int]] = {}
    for i, kind in enumerate(types):
        own = given.pop(str(i), {})
        if not isinstance(own, Mapping) or not set(own) <= set(plain):
            raise refuse(config, "per_layer_config", f"lets layers differ in {', '.join(plain)}")
        layer = replace(config, values={**plain, **own})
        sizes = layer.size("head_dim"), layer.size("num_key_value_heads")
        if found.setdefault(kind, sizes) != sizes:
            raise refuse(config, "per_layer_config", f"has layers of type {kind} of one size")
        if config.size("num_attention_heads") % sizes[1]:
            raise refuse(config, "num_attention_heads", f"has {sizes[1]} kv heads in some layers")
    if given:
        raise refuse(config, "per_layer_config", f"has {len(types)} layers")
    return found


def _kv_heads(config: ModelConfig) -> int:
    return config.size("num_key_value_heads", config.size("num_attention_heads"))


def _experts(config: ModelConfig) -> Mixture:
    return mixture(
        config,
        RouterSpec(renormalize=True),
        top_k="top_k_experts",
        activation=activation(config, "hidden_activation"),
        names=BY_NAME if config.get("experts_by_name") else EXPERTS,
    )
