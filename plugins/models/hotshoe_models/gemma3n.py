"""Gemma 3n (text): several residual streams, a low-rank path beside attention, per-layer inputs,
sparse MLPs, and last layers that share keys and values.

Defaults are those of transformers' Gemma3nTextConfig.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.gemma import GEMMA3_NAMES, gemma3_rope
from hotshoe_models.gemma3n_layers import Gemma3nDecoder
from hotshoe_models.gemma4 import per_layer, rounded, shared_layers
from hotshoe_models.stream_specs import StreamSpec
from hotshoe_models.values import (
    FULL,
    SLIDING,
    activation,
    count,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    optional_number,
    optional_size,
    refuse,
    with_defaults,
)

DEFAULTS = {
    "vocab_size": 262400,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 35,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "sliding_window": 512,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "altup_active_idx": 0,
    "altup_coef_clip": 120.0,  # of training alone
    "altup_correct_scale": True,
    "altup_num_inputs": 4,
    "num_kv_shared_layers": 15,
    "laurel_rank": 64,
    "activation_sparsity_pattern": None,
}
#: In files that say nothing of types, every so-manieth layer attends to everything.
PATTERN = 5
#: In files that say nothing of sparsity: of so many layers, if there are more of them.
SPARSE_LAYERS, SPARSITY = 10, 0.95


def build(config: ModelConfig, ctx: BuildContext) -> Gemma3nDecoder:
    """Build Gemma3nForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if config.get("use_bidirectional_attention"):
        raise refuse(config, "use_bidirectional_attention", "attends to earlier tokens only")
    config = replace(config, values={**config.values, **gemma3_rope(config)})
    types = layer_types(config, lambda i: SLIDING if (i + 1) % PATTERN else FULL)
    plain = layer_specs(config, ctx, types, optional_size(config, "sliding_window"))
    rest = zip(
        plain,
        shared_layers(config, ctx, types),
        _sizes(config, len(types)),
        _sparsity(config, len(types)),
        strict=True,
    )
    layers = tuple(
        replace(layer, shares=source, intermediate_size=size, sparsity=sparsity)
        for layer, source, size, sparsity in rest
    )
    bias, own = flag(config, "attention_bias"), per_layer(config, ctx)
    if own is None:
        raise refuse(config, "hidden_size_per_layer_input", "has an input for each layer")
    spec = decoder_spec(
        config,
        layers,
        intermediate_size=0,  # each layer has its own
        activation=activation(config, "hidden_activation"),
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=1.0,
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        embedding_scale=rounded(ctx, config.size("hidden_size") ** 0.5),
        value_norm=True,
        per_layer=own,
        streams=_streams(config),
        names=GEMMA3_NAMES,
    )
    return Gemma3nDecoder(spec, ctx)


def _streams(config: ModelConfig) -> StreamSpec:
    streams, active = config.size("altup_num_inputs"), count(config, "altup_active_idx")
    if active >= streams:
        raise refuse(config, "altup_active_idx", f"has {streams} streams")
    scaled = flag(config, "altup_correct_scale")
    rank = config.size("laurel_rank")
    return StreamSpec(count=streams, active=active, scaled=scaled, laurel_rank=rank)


def _sizes(config: ModelConfig, layers: int) -> list[int]:
    """Return the channels between each layer's MLP matrices: one number for all, or a list."""
    given: Any = config.require("intermediate_size")
    if not isinstance(given, list):
        return [config.size("intermediate_size")] * layers
    if len(given) != layers or not all(type(size) is int and size > 0 for size in given):
        raise refuse(config, "intermediate_size", f"needs a positive integer for {layers} layers")
    return given


def _sparsity(config: ModelConfig, layers: int) -> list[float]:
    given: Any = config.get("activation_sparsity_pattern")
    if given is None:
        sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
        return [SPARSITY] * sparse + [0.0] * (layers - sparse)
    valid = isinstance(given, list) and len(given) == layers
    if not valid or not all(type(x) in (int, float) and 0 <= x < 1 for x in given):
        message = f"needs a number from 0 to below 1 for each of {layers} layers"
        raise refuse(config, "activation_sparsity_pattern", message)
    return [float(x) for x in given]
