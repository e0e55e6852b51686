"""Qwen4-Exp (text): several residual streams, gated-delta blocks, in every fourth layer gated
attention to groups of tokens that an indexer chooses, experts, and embeddings of n-grams.

Defaults are those of transformers' Qwen4ExpTextConfig.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import RouterSpec
from hotshoe_models.deltas import LINEAR
from hotshoe_models.mixtures import mixture, with_expert_defaults, with_experts
from hotshoe_models.ngrams import NGramSpec
from hotshoe_models.qwen4_layers import Qwen4Decoder, Qwen4Parts
from hotshoe_models.qwen35 import PROJECTIONS
from hotshoe_models.qwen_moe import NAMES
from hotshoe_models.qwen_next import gated_spec, mixed_layers
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import FULL, activation, flag, refuse

DEFAULTS: dict[str, Any] = {
    "vocab_size": 248320,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False,
    "rope_parameters": None,
    "attention_bias": False,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
    "layer_types": None,
    "hc_count": 4,
    "hc_lowrank": 320,
    "ple_layer_ids": None,
    "ple_embed_dim": None,
    "ple_conv_kernel_size": 4,
    "ngram_size": 3,
    "heads_per_ngram": 8,
    "ngram_vocab_size_base": 20000000,
    "make_ngram_vocab_size_divisible_by": 128,
    "seed": 1234,
    "output_gate_type": None,
    "partial_rotary_factor": 1.0,
    "indexer_n_heads": None,
    "indexer_kv_heads": None,
    "indexer_head_dim": None,
    "indexer_budget": None,
    "indexer_compress_ratio": None,
    "split_ngram_parts": 512,
}
#: Numbers that config.json determines, and the name of a part of a table.
MADE = (r"\.ple_embedding\.(layer_multipliers|ngram_heads_vocab_sizes|ngram_heads_offsets)$",)
#: Of a table for one token: each has a prime of its own, which takes time to find.
MOST_ROWS = 256
SHARD = re.compile(r"(.*\.ngram_embedding)\.shard_(\d+)\.weight")


def build(config: ModelConfig, ctx: BuildContext) -> Qwen4Decoder:
    """Build Qwen4ExpForCausalLM, and the text part of Qwen4ExpForConditionalGeneration."""
    config = with_expert_defaults(config, DEFAULTS)
    values = {"intermediate_size": config.size("moe_intermediate_size"), **config.values}
    types = config.get("layer_types")
    if isinstance(types, list):  # files call these layers full, too
        values["layer_types"] = [FULL if x == "indexed_attention" else x for x in types]
    config = replace(config, values=values)
    layers = mixed_layers(config, ctx)
    parts = _parts(config, layers)
    shared = config.size("shared_expert_intermediate_size")
    router = RouterSpec(renormalize=flag(config, "norm_topk_prob"))
    experts = mixture(config, router, shared_size=shared, shared_gated=True, names=NAMES)
    ctx.weights.rename(r"^model\.language_model\.", "model.")
    spec = gated_spec(config, ctx, with_experts(layers, experts, lambda i: True), PROJECTIONS)
    assert spec.delta is not None
    gate = "hidden_act" if config.get("output_gate_type") is None else "output_gate_type"
    kind = activation(config, gate, {"silu": "silu", "sigmoid": "sigmoid"})
    delta = replace(spec.delta, delta=replace(spec.delta.delta, gate=kind))
    ctx.weights.ignore(MADE, "numbers that config.json determines")
    remake(ctx, _tables)
    return Qwen4Decoder(replace(spec, delta=delta), ctx, parts)


def _parts(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> Qwen4Parts:
    """Describe the parts that a `DecoderSpec` lacks."""
    budget, group = config.size("indexer_budget"), config.size("indexer_compress_ratio")
    if budget % group:
        raise refuse(config, "indexer_budget", f"chooses groups of {group} tokens")
    if config.size("indexer_kv_heads") != 1:
        raise refuse(config, "indexer_kv_heads", "has one key for all heads of an indexer")
    if config.size("hc_count") < 2:
        raise refuse(config, "hc_count", "has several residual streams")
    dim = config.size("indexer_head_dim")
    turned = max((x.rotation.rotary_dim for x in layers if x.rotation is not None), default=0)
    if dim < turned:
        raise refuse(config, "indexer_head_dim", f"rotates {turned} channels of it")
    return Qwen4Parts(
        count=config.size("hc_count"),
        rank=config.size("hc_lowrank"),
        heads=config.size("indexer_n_heads"),
        head_dim=dim,
        top_k=budget // group,
        group=group,
        ngrams=_ngrams(config, layers),
        taps=config.size("ple_conv_kernel_size"),
        apart=config.size("ngram_size"),
    )


def _ngrams(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> dict[int, NGramSpec]:
    """Describe the tables, by layers, which a file counts from 1."""
    listed = config.get("ple_layer_ids") or []
    valid = isinstance(listed, list) and all(
        type(i) is int and 0 < i <= len(layers) and layers[i - 1].mixer == "delta" for i in listed
    )
    if not valid:
        raise refuse(config, "ple_layer_ids", f"needs numbers of layers of {LINEAR}, from 1 on")
    if not listed:
        return {}
    size, heads = config.size("ngram_size"), config.size("heads_per_ngram")
    if size < 2:
        raise refuse(config, "ngram_size", "has n-grams of 2 tokens or more")
    key = "hidden_size" if config.get("ple_embed_dim") is None else "ple_embed_dim"
    channels, rows = config.size(key), (size - 1) * heads
    if rows > MOST_ROWS:
        raise refuse(config, "heads_per_ngram", f"has at most {MOST_ROWS} rows for a token")
    if channels % rows:
        raise refuse(config, key, f"is divided among {rows} rows of n-grams")
    end = config.get("eos_token_id")
    end = end[0] if isinstance(end, list) and end else end
    if type(end) is not int or not 0 <= end < config.size("vocab_size"):
        raise refuse(config, "eos_token_id", "needs an id, which n-grams do not go beyond")
    seed = config.get("seed")
    if type(seed) is not int:
        raise refuse(config, "seed", "needs an integer")
    return {
        layer - 1: NGramSpec(
            size=size,
            heads=heads,
            dim=channels // rows,
            base=config.size("ngram_vocab_size_base"),
            multiple=config.size("make_ngram_vocab_size_divisible_by"),
            seed=seed,
            index=index,
            end=end,
            vocab_size=config.size("vocab_size"),
        )
        for index, layer in enumerate(sorted(set(listed)))
    }


def _tables(names: Iterable[str]) -> Mapping[str, Recipe]:
    """Join the parts of each table."""
    found: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        if (match := SHARD.fullmatch(name)) is not None:
            found[match[1]].append((int(match[2]), name))
    return {
        f"{table}.weight": (tuple(name for _, name in sorted(parts)), _joined)
        for table, parts in found.items()
    }


def _joined(*parts: Tensor) -> Tensor:
    return torch.cat(parts)
