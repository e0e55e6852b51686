"""What config.json would hold of Gemma 4 and Gemma 3n, from the metadata of their GGUF files.

Source: see `hybrids`.
"""

from __future__ import annotations

import math
from typing import Any

from hotshoe_models.gguf import mixtures
from hotshoe_models.gguf.dense import LAYER_TYPES, Values
from hotshoe_models.gguf.hybrid_names import GEMMA3N_OUTER, GEMMA4_OUTER
from hotshoe_models.gguf.hybrids import has
from hotshoe_models.gguf.metadata import Metadata

#: Fields of families.
GEMMA4: dict[str, Any] = {"outer": GEMMA4_OUTER, "mixed": True}
GEMMA3N = {**GEMMA4, "outer": GEMMA3N_OUTER}
#: What a file divides the frequencies of pairs by that do not turn, or more.
STILL = 1e29
KV, PER_LAYER = "attention.head_count_kv", "per_layer_token_embd"


def gemma4(meta: Metadata) -> Values:
    """Layers differ in heads, in MLPs, and in whose keys and values they read.

    Raises:
        CheckpointError: A key is missing or malformed, or lists do not fit each other.
    """
    slides, shared = _slides(meta), meta.integer("attention.shared_kv_layers", 0)
    own = len(slides) - shared
    wide = meta.integer("attention.key_length")
    local, each = meta.integer("attention.key_length_swa", wide), meta.sizes(KV)
    sizes = [local if slide else wide for slide in slides]
    inputs = meta.integer("embedding_length_per_layer_input", 0)
    full = [i for i, slide in enumerate(slides[: max(own, 0)]) if not slide]
    return {
        "head_dim": local,
        "layer_types": [LAYER_TYPES[slide] for slide in slides],
        "per_layer_config": {
            str(i): {"head_dim": size, "num_key_value_heads": heads}
            for i, (size, heads) in enumerate(zip(sizes, each, strict=True))
        },
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": _is_wide(meta, own),
        "attention_k_eq_v": any(f"blk.{i}.attn_v.weight" not in meta.tensors for i in full),
        "attention_bias": has(meta, "attn_q.bias"),
        "sliding_window": meta.integer("attention.sliding_window"),
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
        "hidden_size_per_layer_input": inputs,
        "vocab_size_per_layer_input": meta.shape(f"{PER_LAYER}.weight")[0] if inputs else 0,
        "enable_moe_block": False,
        "rope_parameters": _rotations(meta, wide, local),
    }


def gemma4_moe(meta: Metadata) -> Values:
    """Factors of experts are with their second matrices in files."""
    found = mixtures.experts(meta)
    return {
        **gemma4(meta),
        "enable_moe_block": True,
        "num_experts": found["num_experts"],
        "top_k_experts": found["num_experts_per_tok"],
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "experts_by_name": True,
    }


def _slides(meta: Metadata) -> list[bool]:
    """Return, for each layer, whether it attends within a window."""
    key, layers = "attention.sliding_window_pattern", meta.integer("block_count")
    found = meta.get(key)
    if not isinstance(found, list) or len(found) != layers:
        raise meta.refuse(f"{meta.arch}.{key}", f"but must say it of {layers} layers")
    return [bool(slide) for slide in found]


def _is_wide(meta: Metadata, own: int) -> bool:
    """Tell whether MLPs are twice as wide in layers that read others' keys and values.

    Raises:
        CheckpointError: They differ otherwise.
    """
    key = "feed_forward_length"
    sizes = meta.sizes(key)
    for wide in (1, 2):
        if sizes == [sizes[0] * (1 if i < own else wide) for i in range(len(sizes))]:
            return wide == 2
    raise meta.refuse(f"gemma4.{key}", "but must be one size, and in shared layers perhaps twice")


def _rotations(meta: Metadata, wide: int, local: int) -> Values:
    """Return how layers of either kind turn q and k: full ones the first pairs of heads alone.

    Raises:
        CheckpointError: The file's frequencies are others.
    """
    factors = meta.floats("rope_freqs.weight")
    turned = factors.count(1.0)
    still = all(factor >= STILL for factor in factors[turned:])
    if len(factors) != wide // 2 or not turned or not still:
        raise meta.refuse(
            "gemma4.attention.key_length",
            "but rope_freqs.weight must hold 1 for pairs that turn and then 1e30, for each pair",
        )
    swa = meta.integer("rope.dimension_count_swa", local)
    return {
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": turned / len(factors),
            "rope_theta": meta.number("rope.freq_base"),
        },
        "sliding_attention": {
            "rope_type": "default",
            "partial_rotary_factor": swa / local,
            "rope_theta": meta.number("rope.freq_base_swa"),
        },
    }


def gemma3n(meta: Metadata) -> Values:
    """Layers differ in windows, in the sizes of MLPs, and in how sparse these are."""
    slides = _slides(meta)
    full, local = meta.number("rope.freq_base"), meta.number("rope.freq_base_swa", 10_000.0)
    return {
        "layer_types": [LAYER_TYPES[slide] for slide in slides],
        "intermediate_size": meta.sizes("feed_forward_length"),
        "attention_bias": has(meta, "attn_q.bias"),
        "sliding_window": meta.integer("attention.sliding_window"),
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
        "hidden_size_per_layer_input": meta.integer("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": meta.shape(f"{PER_LAYER}.weight")[0],
        "altup_active_idx": meta.integer("altup.active_idx", 0),
        "altup_num_inputs": meta.integer("altup.num_inputs"),
        "altup_correct_scale": has(meta, "altup_correct_scale.weight"),
        "num_kv_shared_layers": meta.integer("attention.shared_kv_layers", 0),
        "laurel_rank": meta.shape("blk.0.laurel_l.weight")[0],
        "activation_sparsity_pattern": _sparsity(meta, len(slides)),
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": full},
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
    }


def _sparsity(meta: Metadata, layers: int) -> list[float]:
    """Return the share of channels that each MLP drops; files have its quantile of a normal.

    Raises:
        CheckpointError: There is none for each layer.
    """
    key = "activation_sparsity_scale"
    found = meta.get(key)
    right = isinstance(found, list) and len(found) == layers
    if not right or not all(type(x) is float and x < 10 for x in found):
        raise meta.refuse(f"gemma3n.{key}", f"but must be quantiles for {layers} layers")
    return [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in found]
