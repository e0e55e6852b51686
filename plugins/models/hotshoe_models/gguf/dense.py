"""What config.json would hold of dense architectures, from the metadata of their GGUF files.

Source: the keys of ggml's gguf.md; the keys of transformers' configurations.
"""

from __future__ import annotations

from typing import Any

from hotshoe_models.gguf.metadata import Metadata

Values = dict[str, Any]

#: Types of layers, by whether they attend within a window.
LAYER_TYPES = {False: "full_attention", True: "sliding_attention"}


#: What configurations call the smallest variance of a norm.
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_epsilon")


def epsilon(meta: Metadata) -> float:
    """Return the smallest variance of norms, with or without a mean.

    Raises:
        CheckpointError: It is missing, or no number.
    """
    with_mean = "attention.layer_norm_epsilon"
    found = meta.get(with_mean) is not None
    return meta.number(with_mean if found else "attention.layer_norm_rms_epsilon")


def head_size(meta: Metadata) -> int:
    """Return the channels of a head; where a file does not say, heads divide the hidden size.

    Raises:
        CheckpointError: There are more heads than channels.
    """
    if found := meta.integer("attention.key_length", 0):
        return found
    hidden, heads = meta.integer("embedding_length"), meta.least("attention.head_count")
    if heads > hidden:
        raise meta.refuse(f"{meta.arch}.attention.head_count", f"but there are {hidden} channels")
    return hidden // heads


def rotation_of(meta: Metadata, head_dim: int) -> Values:
    """Return what turns q and k: the base, and how it is stretched."""
    rope: Values = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base", 10_000.0)}
    rotated = meta.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        rope["partial_rotary_factor"] = rotated / head_dim
    original = meta.integer("rope.scaling.original_context_length", 0)
    if original:
        rope["original_max_position_embeddings"] = original
    if factors := meta.floats("rope_freqs.weight"):
        return {"rope_parameters": rope | _factors(factors, factors) | {"attention_factor": 1.0}}
    long, short = (meta.floats(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    if long and short:
        if (scale := meta.number("rope.scaling.attn_factor", 0.0)) > 0:
            rope["attention_factor"] = scale
        return {"rope_parameters": rope | _factors(short, long)}
    kind = meta.text("rope.scaling.type", "none")
    factor = meta.number("rope.scaling.factor", meta.number("rope.scale_linear", 0.0))
    if kind not in ("none", "linear", "yarn"):
        raise meta.refuse(f"{meta.arch}.rope.scaling.type", "is not read; known: linear, yarn")
    if factor in (0.0, 1.0):
        return {"rope_parameters": rope}
    kind = "linear" if kind == "none" else kind
    rope |= {"rope_type": kind, "factor": factor}
    return {"rope_parameters": rope | (_ramp(meta) if kind == "yarn" else {})}


def _ramp(meta: Metadata) -> Values:
    """Return what a file says of YaRN beside the factor, under the names of configurations.

    Raises:
        CheckpointError: Something else than all of YaRN is meant.
    """
    key = "rope.scaling.yarn_ext_factor"
    if meta.number(key, 1.0) != 1:
        raise meta.refuse(f"{meta.arch}.{key}", "but is read as 1")
    names = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attn_factor": "attention_factor"}
    found = {ours: meta.number(f"rope.scaling.yarn_{own}", 0.0) for own, ours in names.items()}
    return {ours: value for ours, value in found.items() if value > 0}


def _factors(short: list[float], long: list[float]) -> Values:
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long}


def windowed(meta: Metadata) -> Values:
    window = meta.integer("attention.sliding_window", 0)
    return {"sliding_window": window or None}


def llama(meta: Metadata) -> Values:
    """Mistral is called llama, too; where a file names a window, it is one."""
    window = windowed(meta)["sliding_window"]
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window} if window else {}


def phi3(meta: Metadata) -> Values:
    original = meta.integer("rope.scaling.original_context_length", meta.integer("context_length"))
    return {**windowed(meta), "original_max_position_embeddings": original}


def granite(meta: Metadata) -> Values:
    return {
        "attention_multiplier": meta.number("attention.scale"),
        "embedding_multiplier": meta.number("embedding_scale"),
        "residual_multiplier": meta.number("residual_scale"),
        "logits_scaling": meta.number("logit_scale"),
    }


def minicpm(meta: Metadata) -> Values:
    """Return Granite's factors. Older files leave them out, as models of their time have these."""
    hidden, layers = meta.integer("embedding_length"), meta.integer("block_count")
    return {
        "attention_multiplier": head_size(meta) ** -0.5,
        "embedding_multiplier": meta.number("embedding_scale", 12.0),
        "residual_multiplier": meta.number("residual_scale", 1.4 / layers**0.5),
        "logits_scaling": meta.number("logit_scale", hidden / 256),
    }


def minicpm3(meta: Metadata) -> Values:
    """Return sizes of latents, and how rows of them turn; files leave out Granite's factors."""
    rotated, length = meta.integer("rope.dimension_count"), meta.integer("context_length")
    return {
        **rotation_of(meta, rotated),
        "original_max_position_embeddings": length,
        "q_lora_rank": meta.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": meta.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": head_size(meta) - rotated,
        "qk_rope_head_dim": rotated,
    }


def olmo(meta: Metadata) -> Values:
    return {"clip_qkv": meta.number("attention.clamp_kqv", 0.0) or None}


def cohere(meta: Metadata) -> Values:
    normed = "blk.0.attn_q_norm.weight" in meta.tensors
    return {"logit_scale": meta.number("logit_scale"), "use_qk_norm": normed}


def cohere2(meta: Metadata) -> Values:
    """Files leave out that one of four layers has no window."""
    return {**cohere(meta), **windowed(meta), "sliding_window_pattern": 4}


def rotated_in_part(meta: Metadata) -> Values:
    """Families whose configurations mean another share than all, if they name none."""
    head_dim = head_size(meta)
    return {"partial_rotary_factor": meta.integer("rope.dimension_count", head_dim) / head_dim}


def stablelm(meta: Metadata) -> Values:
    """Blocks are parallel where there is no norm before the MLP.

    Raises:
        CheckpointError: Heads have norms, which files keep in another form.
    """
    if "blk.0.attn_q_norm.weight" in meta.tensors:
        raise meta.refuse("general.architecture", "which is not read with norms of heads")
    return {
        **rotated_in_part(meta),
        "use_parallel_residual": "blk.0.ffn_norm.weight" not in meta.tensors,
        "use_qkv_bias": "blk.0.attn_q.bias" in meta.tensors,
    }


def starcoder2(meta: Metadata) -> Values:
    return {**windowed(meta), "use_bias": "blk.0.attn_q.bias" in meta.tensors}


def seed_oss(meta: Metadata) -> Values:
    return {"attention_out_bias": "blk.0.attn_output.bias" in meta.tensors}


def ministral3(meta: Metadata) -> Values:
    """Return the stretched rotation, without a factor, and the temperature of later queries."""
    rope = rotation_of(meta, head_size(meta))["rope_parameters"]
    if rope["rope_type"] == "yarn":
        factor = meta.number("rope.scaling.yarn_log_multiplier", 1.0)
        rope |= {"mscale": factor, "mscale_all_dim": factor}
        rope["llama_4_scaling_beta"] = meta.number("attention.temperature_scale", 0.0)
    return {**windowed(meta), "rope_parameters": rope}


def windowed_by_layer(meta: Metadata) -> Values:
    """Return the window, and the layers that have it: three of four, or those that a list names."""
    found = windowed(meta)
    count = meta.integer("block_count")
    pattern = meta.get("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        pattern = [
            (i + 1) % meta.integer("attention.sliding_window_pattern", 4) for i in range(count)
        ]
    slides = [bool(entry) and found["sliding_window"] is not None for entry in pattern]
    return {**found, "layer_types": [LAYER_TYPES[entry] for entry in slides]}


def olmo2(meta: Metadata) -> Values:
    """Version 3 is called the same, and has windows."""
    found = windowed_by_layer(meta)
    return {**found, "architectures": ["Olmo3ForCausalLM"]} if found["sliding_window"] else {}


def gemma(meta: Metadata, unlike: int) -> Values:
    """Return the scale of scores, which files leave out, and the window.

    Args:
        unlike: The number of layers of the one size whose scale is not that of a head.
    """
    heads, hidden = meta.integer("attention.head_count"), meta.integer("embedding_length")
    scalar: float = meta.integer("attention.key_length", hidden // heads)
    if meta.integer("block_count") == unlike:
        scalar = hidden // heads
    if scale := meta.number("attention.scale", 0.0):
        scalar = scale**-2
    return {**windowed(meta), "query_pre_attn_scalar": scalar}


def gemma2(meta: Metadata) -> Values:
    return {
        **gemma(meta, unlike=46),
        "attn_logit_softcapping": meta.number("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
    }


def gemma3(meta: Metadata) -> Values:
    """Full layers turn by the file's base and scaling, sliding ones by a base of their own."""
    pattern = meta.get("attention.sliding_window_pattern", 6)
    layers: Values = {"sliding_window_pattern": pattern}
    if isinstance(pattern, list):
        layers = {"layer_types": [LAYER_TYPES[bool(slides)] for slides in pattern]}
    rope = rotation_of(meta, meta.integer("attention.key_length"))["rope_parameters"]
    if meta.get("rope.freq_base") is None:
        rope["rope_theta"] = 1_000_000.0
    local = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa", 10_000.0)}
    return {
        **gemma(meta, unlike=62),
        **layers,
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }


def apertus(meta: Metadata) -> Values:
    """Files list the factors of each layer's activation, which checkpoints have as weights."""
    return {"hidden_act": "xielu"}
