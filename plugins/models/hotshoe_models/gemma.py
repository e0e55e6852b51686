"""Gemma, Gemma 2 and the text model of Gemma 3: scaled embeddings, norms that add 1 to weights.

Gemma 2 and 3 have norms behind each block, too. Gemma 2 and VaultGemma, which lacks those, cap
scores and logits; Gemma 3 norms q and k and rotates its sliding layers with a base of their own.
Defaults are those of transformers' GemmaConfig, Gemma2Config, VaultGemmaConfig and
Gemma3TextConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.spec import DecoderSpec, WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    activation,
    decoder_spec,
    flag,
    layer_specs,
    layer_types,
    mapping,
    number,
    optional_number,
    optional_size,
    refuse,
    with_defaults,
)

GEMMA2_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "use_bidirectional_attention": None,
}
GEMMA_DEFAULTS = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": None,
    "attention_bias": False,
    "use_bidirectional_attention": None,
}
VAULT_DEFAULTS = {k: v for k, v in GEMMA2_DEFAULTS.items() if k != "use_bidirectional_attention"}
GEMMA3_DEFAULTS = {
    **GEMMA2_DEFAULTS,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
    "use_bidirectional_attention": False,
}
#: Rotary bases of Gemma 3's full and sliding layers.
GLOBAL_THETA = 1_000_000.0
LOCAL_THETA = 10_000.0
#: In older files, every so-manieth layer of Gemma 3 attends to everything.
GEMMA3_PATTERN = 6

GEMMA2_NAMES = WeightNames(
    post_attention_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)
VAULT_NAMES = WeightNames(mlp_norm="pre_feedforward_layernorm")
GEMMA3_NAMES = replace(GEMMA2_NAMES, qk_norm=("self_attn.q_norm", "self_attn.k_norm"))


def build_gemma(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build GemmaForCausalLM, whose files say "gelu" and mean its approximation."""
    config = with_defaults(config, GEMMA_DEFAULTS)
    act = config.get("hidden_act")
    as_gemma2 = {
        "hidden_activation": "gelu_pytorch_tanh" if act == "gelu" else act,
        "query_pre_attn_scalar": config.size("head_dim"),
    }
    config = replace(config, values={**config.values, **as_gemma2})
    return DenseDecoder(_spec(config, ctx, layer_types(config, lambda i: FULL), WeightNames()), ctx)


def build_vault(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build VaultGemmaForCausalLM."""
    config = with_defaults(config, VAULT_DEFAULTS)
    types = layer_types(config, lambda i: FULL if i % 2 else SLIDING)
    return DenseDecoder(_spec(config, ctx, types, VAULT_NAMES), ctx)


def build_gemma2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Gemma2ForCausalLM."""
    config = with_defaults(config, GEMMA2_DEFAULTS)
    types = layer_types(config, lambda i: FULL if i % 2 else SLIDING)
    return DenseDecoder(_spec(config, ctx, types, GEMMA2_NAMES), ctx)


def build_gemma3(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Gemma3ForCausalLM."""
    return DenseDecoder(gemma3_spec(config, ctx), ctx)


def gemma3_spec(config: ModelConfig, ctx: BuildContext) -> DecoderSpec:
    """Describe Gemma 3.

    Raises:
        CheckpointError: A value is missing, malformed or not supported.
    """
    config = with_defaults(config, GEMMA3_DEFAULTS)
    if config.get("attn_logit_softcapping") is not None:
        raise refuse(config, "attn_logit_softcapping", "has no soft cap on attention scores")
    every = config.size("sliding_window_pattern", GEMMA3_PATTERN)
    types = layer_types(config, lambda i: SLIDING if (i + 1) % every else FULL)
    config = replace(config, values={**config.values, **gemma3_rope(config)})
    return _spec(config, ctx, types, GEMMA3_NAMES)


def _spec(
    config: ModelConfig, ctx: BuildContext, types: list[str], names: WeightNames
) -> DecoderSpec:
    if config.get("use_bidirectional_attention"):
        raise refuse(config, "use_bidirectional_attention", "attends to earlier tokens only")
    bias = flag(config, "attention_bias")
    # The factor is rounded to the model's type before it multiplies, as in training.
    scale = torch.tensor(config.size("hidden_size") ** 0.5, dtype=ctx.torch_dtype).item()
    return decoder_spec(
        config,
        layer_specs(config, ctx, types, optional_size(config, "sliding_window")),
        activation=activation(config, "hidden_activation"),
        norm_offset=1.0,
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=number(config, "query_pre_attn_scalar") ** -0.5,
        attention_softcap=optional_number(config, "attn_logit_softcapping"),
        logits_softcap=optional_number(config, "final_logit_softcapping"),
        embedding_scale=scale,
        names=names,
    )


def gemma3_rope(config: ModelConfig) -> dict[str, Any]:
    """Bring both spellings to one entry per layer type."""
    given = mapping(config, "rope_parameters")
    if not set(given) <= {FULL, SLIDING} or not all(
        entry is None or isinstance(entry, Mapping) for entry in given.values()
    ):
        raise refuse(config, "rope_parameters", f"needs objects {FULL} and {SLIDING}")
    full = {
        "rope_theta": config.get("rope_theta", GLOBAL_THETA),
        **(given.get(FULL) or {}),
        **mapping(config, "rope_scaling"),
    }
    sliding = {
        "rope_theta": config.get("rope_local_base_freq", LOCAL_THETA),
        **(given.get(SLIDING) or {}),
    }
    return {"rope_parameters": {FULL: full, SLIDING: sliding}, "rope_scaling": None}
