"""What config.json would hold of models whose code is published beside their checkpoints, from the
metadata of their GGUF files.

Files have apart what such checkpoints stack. Source: see `hybrids`.
"""

from __future__ import annotations

from typing import Any

from hotshoe_models.gguf import mixtures, older
from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.family import Family
from hotshoe_models.gguf.hybrids import has
from hotshoe_models.gguf.keys import CONVERTED, NORMED_WORDS
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import (
    ARCTIC_NAMES,
    DEEPSEEK_NAMES,
    GPT2_NAMES,
    GPT2_OUTER,
    GROK_NAMES,
    GROVE_NAMES,
    OPENELM_NAMES,
    OPENELM_OUTER,
    PLAMO_NAMES,
    REFACT_NAMES,
    REFACT_OUTER,
    THINKER_NAMES,
)

#: Of Baichuan: so many layers has the size that rotates.
ROTATED_LAYERS = 32
#: The only slopes of Jais: the least is 2^-8.
MAX_BIAS = 8.0
#: Of SmallThinker: so many layers have one without a window.
THINKER_PERIOD = 4
#: Of Grok 1: the keys of its factors, those of files, and its values.
GROK_FACTORS = (
    ("attn_output_multiplier", "attention.output_scale", 0.08838834764831845),
    ("max_attn_value", "attn_logit_softcapping", 30.0),
    ("embedding_multiplier_scale", "embedding_scale", 78.38367176906169),
    ("output_multiplier_scale", "logit_scale", 0.5773502691896257),
)
_MADE: Values = {CONVERTED: True}


def baichuan(meta: Metadata) -> Values:
    """Return keys of Baichuan 7B, or of 13B, whose configuration has no number of positions."""
    if meta.integer("block_count") <= ROTATED_LAYERS:
        return _MADE
    length = meta.integer("context_length")
    return {**_MADE, "max_position_embeddings": None, "model_max_length": length}


def normed(meta: Metadata) -> tuple[str, ...]:
    """Return the output matrix of Baichuan 2, whose rows get a length of one."""
    return ("lm_head.weight",) if meta.shape("token_embd.weight")[0] == NORMED_WORDS else ()


def jais(meta: Metadata) -> Values:
    """Return keys of Jais. Its factors on embeddings and logits are part of the file's tensors.

    Raises:
        CheckpointError: There is no output matrix, or slopes are others than those of all models.
    """
    meta.shape("output.weight")
    bias = meta.number("attention.max_alibi_bias", MAX_BIAS)
    if bias != MAX_BIAS:
        raise meta.refuse("jais.attention.max_alibi_bias", f"but is read as {MAX_BIAS}")
    return {
        **older.gpt_keys(meta),
        **_MADE,
        "activation_function": "swiglu",
        "position_embedding_type": "alibi",
        "mup_scale_qk_dot_by_d": True,
    }


def openelm(meta: Metadata) -> Values:
    """Return heads and channels of each layer."""
    size, widths = meta.integer("embedding_length"), meta.sizes("feed_forward_length")
    return {
        **_MADE,
        "num_query_heads": meta.sizes("attention.head_count"),
        "num_kv_heads": meta.sizes("attention.head_count_kv"),
        "ffn_multipliers": [width / size for width in widths],
        "ffn_dim_divisor": 1,
        "normalize_qk_projections": has(meta, "attn_q_norm.weight"),
    }


def refact(meta: Metadata) -> Values:
    """Return the smallest variance of norms, which take off a mean, whatever files say.

    Raises:
        CheckpointError: There are several heads of keys.
    """
    if meta.integer("attention.head_count_kv", 1) != 1:
        raise meta.refuse("refact.attention.head_count_kv", "but must be 1")
    return _MADE


def plm(meta: Metadata) -> Values:
    return {**mixtures.latents(meta), "hidden_act": "relu2"}


def arctic(meta: Metadata) -> Values:
    """Every layer has experts beside its MLP, which is as wide as the residual."""
    found = mixtures.experts(meta)
    return {**found, "moe_layer_frequency": 1, "parallel_attn_mlp_res": True}


def grok(meta: Metadata) -> Values:
    """Return keys of Grok 1. Older files leave its factors out.

    Raises:
        CheckpointError: The file is one of Grok 2, which has an MLP beside experts.
    """
    if has(meta, "ffn_up.weight") or meta.number("final_logit_softcapping", 0.0):
        raise meta.refuse("general.architecture", "which is read of Grok 1 alone")
    factors = {ours: meta.number(own, default) for ours, own, default in GROK_FACTORS}
    return {**mixtures.experts(meta), **factors}


def grovemoe(meta: Metadata) -> Values:
    """Return Qwen 3's experts, and the sizes of groups of them and of the small ones."""
    small, group = "expert_chunk_feed_forward_length", "experts_per_group"
    return {
        **mixtures.qwen3_moe(meta),
        small: meta.integer(small),
        group: meta.integer(group),
        "expert_group_scale": meta.number("expert_group_scale"),
    }


def smallthinker(meta: Metadata) -> Values:
    """Where a file names a window, the first of four layers has none and does not rotate.

    Raises:
        CheckpointError: A key is missing or malformed, or the router is unknown.
    """
    found, layers = mixtures.experts(meta), meta.integer("block_count")
    key, scorings = "expert_gating_func", (mixtures.SOFTMAX, mixtures.SIGMOID)
    scoring = meta.integer(key, mixtures.SIGMOID)
    if scoring not in scorings:
        raise meta.refuse(f"{meta.arch}.{key}", f"but read are {scorings}")
    slides = [int(i % THINKER_PERIOD > 0) for i in range(layers)]
    window = meta.integer("attention.sliding_window", 0)
    windows = {"sliding_window_size": window, "sliding_window_layout": slides}
    return {
        **({**windows, "rope_layout": slides} if window else {}),
        "moe_num_primary_experts": found["num_experts"],
        "moe_num_active_primary_experts": found["num_experts_per_tok"],
        "moe_ffn_hidden_size": meta.integer("expert_feed_forward_length"),
        "moe_primary_router_apply_softmax": scoring == mixtures.SOFTMAX,
    }


OPENELM: dict[str, Any] = {"outer": OPENELM_OUTER, "layer": "transformer.layers.{}."}
REFACT: dict[str, Any] = {"outer": REFACT_OUTER, "layer": older.BLOCK}
FAMILIES = {
    "baichuan": Family("BaichuanForCausalLM", baichuan, pairs=True, unpacked=normed),
    "jais": Family(
        "JAISLMHeadModel",
        jais,
        {**GPT2_NAMES, "ffn_gate": "mlp.c_fc2"},
        outer=GPT2_OUTER,
        layer=older.BLOCK,
    ),
    "openelm": Family("OpenELMForCausalLM", openelm, OPENELM_NAMES, mixed=True, **OPENELM),
    "plamo": Family(
        "PlamoForCausalLM", lambda meta: _MADE, PLAMO_NAMES, layer="model.layers.layers.{}."
    ),
    "plm": Family("PLMForCausalLM", plm, DEEPSEEK_NAMES, latents=True),
    "refact": Family("GPTRefactForCausalLM", refact, REFACT_NAMES, **REFACT),
}
MIXTURES = {
    "arctic": Family("ArcticForCausalLM", arctic, ARCTIC_NAMES, pairs=True),
    "grok": Family("Grok1ModelForCausalLM", grok, GROK_NAMES),
    "grovemoe": Family("GroveMoeForCausalLM", grovemoe, GROVE_NAMES),
    "smallthinker": Family("SmallThinkerForCausalLM", smallthinker, THINKER_NAMES),
}
