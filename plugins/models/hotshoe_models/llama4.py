"""Llama 4 (text): some layers do not rotate, and their queries grow with position; each token has
one expert, which takes a scaled input, and a shared one.

Layers that rotate attend within chunks. Defaults are those of transformers' Llama4TextConfig.
"""

from __future__ import annotations

from dataclasses import replace

from hotshoe.layers import BuildContext, MoeNames, Stacked, Temperature
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.spec import LayerSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    decoder_spec,
    flag,
    interleaved,
    layer_specs,
    number,
    optional_size,
    refuse,
)

DEFAULTS = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096 * 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "num_experts_per_tok": 1,
    "num_local_experts": 16,
    "moe_layers": None,
    "interleave_moe_layer_step": 1,
    "use_qk_norm": True,
    "rope_parameters": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "layer_types": None,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "attention_bias": False,
}
DEFAULT_THETA = 500_000.0
CHUNKED = "chunked_attention"
NAMES = WeightNames(
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"), down="feed_forward.down_proj"
)
EXPERTS = MoeNames(
    router="feed_forward.router",
    gate_up=("feed_forward.experts.{}.gate_proj", "feed_forward.experts.{}.up_proj"),
    down="feed_forward.experts.{}.down_proj",
    stacked=Stacked(
        gate_up="feed_forward.experts.gate_up_proj",
        down="feed_forward.experts.down_proj",
        transposed=True,
        named=True,
    ),
    shared_gate_up=(
        "feed_forward.shared_expert.gate_proj",
        "feed_forward.shared_expert.up_proj",
    ),
    shared_down="feed_forward.shared_expert.down_proj",
)
#: Of files that have each expert's matrices, gate and up apart.
BY_NAME = replace(EXPERTS, stacked=None)


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Llama4ForCausalLM."""
    config = with_expert_defaults(config, DEFAULTS)
    rotated = _rotated(config)
    chunks = _chunks(config, rotated)
    full = layer_specs(config, ctx, [FULL] * len(rotated), default_theta=DEFAULT_THETA)
    layers = interleaved(full)
    normed, temperature = flag(config, "use_qk_norm"), _temperature(config)
    factor = max(
        (one.rotation.attention_factor for one in layers if one.rotation is not None), default=1.0
    )
    if normed and factor != 1.0:
        raise refuse(config, "use_qk_norm", "scales neither of q and k by its rotation")
    layers = tuple(
        replace(layer, chunk=chunk, unit_qk=normed)
        if turns
        else replace(layer, chunk=chunk, rotation=None, temperature=temperature)
        for layer, turns, chunk in zip(layers, rotated, chunks, strict=True)
    )
    bias = flag(config, "attention_bias")
    spec = decoder_spec(
        config,
        _with_experts(config, layers),
        intermediate_size=config.size("intermediate_size_mlp"),
        qkv_bias=bias,
        o_bias=bias,
        names=NAMES,
    )
    return DenseDecoder(spec, ctx)


def _rotated(config: ModelConfig) -> list[bool]:
    """Tell which layers rotate: as the file lists them, or all but every so-manieth."""
    key, layers = "no_rope_layers", config.size("num_hidden_layers")
    every = config.size("no_rope_layer_interval")
    listed = config.get(key) or [int((i + 1) % every != 0) for i in range(layers)]
    if not isinstance(listed, list) or len(listed) < layers or set(listed) - {0, 1}:
        raise refuse(config, key, f"needs 1 (rotates) or 0 for each of {layers} layers")
    return [bool(turns) for turns in listed[:layers]]


def _chunks(config: ModelConfig, rotated: list[bool]) -> list[int | None]:
    """Return the chunk within which each layer attends; None where it sees all."""
    key, chunk = "layer_types", optional_size(config, "attention_chunk_size")
    types = config.get(key) or [CHUNKED if turns and chunk else FULL for turns in rotated]
    if not isinstance(types, list) or len(types) != len(rotated):
        raise refuse(config, key, f"needs one entry for each of {len(rotated)} layers")
    if not all(kind in (CHUNKED, FULL) for kind in types):
        raise refuse(config, key, f"knows only {CHUNKED} and {FULL}")
    if CHUNKED in types and chunk is None:
        raise refuse(config, "attention_chunk_size", f"has layers of type {CHUNKED}")
    return [chunk if kind == CHUNKED else None for kind in types]


def _temperature(config: ModelConfig) -> Temperature | None:
    """Return how queries of layers without rotation grow; some files have a number for true."""
    tuned = config.get("attn_temperature_tuning", False)
    if not isinstance(tuned, int):
        raise refuse(config, "attn_temperature_tuning", "needs true or false")
    if not tuned:
        return None
    return Temperature(number(config, "attn_scale"), config.size("floor_scale"), 1)


def _with_experts(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Give experts to the layers that the file lists, or to every so-manieth."""
    key, every = "moe_layers", config.size("interleave_moe_layer_step")
    listed = config.values.get(key)
    if listed is None:
        listed = list(range(every - 1, len(layers), every))
    if not isinstance(listed, list) or not all(type(i) is int for i in listed):
        raise refuse(config, key, "needs a list of layer indices")
    if not listed:
        return layers
    if config.size("num_experts_per_tok") != 1:
        raise refuse(config, "num_experts_per_tok", "takes one expert for each token")
    experts = mixture(
        config,
        RouterSpec(renormalize=True),
        experts="num_local_experts",
        size="intermediate_size",
        shared_size=config.size("intermediate_size"),
        scaled_input=True,
        names=BY_NAME if config.get("experts_by_name") else EXPERTS,
    )
    return with_experts(layers, experts, lambda i: i in listed)
