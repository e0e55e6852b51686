"""Keys and changes of tensors in tiny GGUF files of models whose layers differ, as converters do.

`hybrid_files` writes them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tests.plugins.models.gguf.conftest import halves, latents_of, paired, parts_of
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

Parts = list[tuple[str, np.ndarray]]
#: Names of architectures in files, by the family's name in transformers.
ARCHS = {
    "DeepseekV32": "deepseek32",
    "GlmMoeDsa": "glm-dsa",
    "Mistral4": "mistral4",
    "MiMoV2Flash": "mimo2",
    "Step3p7": "step35",
    "HYV3": "hy_v3",
    "Laguna": "laguna",
    "Mellum": "mellum",
    "MiniCPM3": "minicpm3",
    "MiniMaxM3VL": "minimax-m3",
    "Olmo": "olmo",
    "Youtu": "deepseek2",
}


def glm_keys(config: Any) -> dict[str, Any]:
    return {
        **latents_of(config),
        "expert_gating_func": 2,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
    }


def mistral_keys(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    return {
        **latents_of(config),
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "attention.temperature_scale": rope["llama_4_scaling_beta"],
    }


def _slides(config: Any) -> list[bool]:
    return [kind == "sliding_attention" for kind in config.layer_types]


def _rotations(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters
    bases = {"": "full_attention", "_swa": "sliding_attention"}
    return {f"rope.freq_base{end}": float(rope[kind]["rope_theta"]) for end, kind in bases.items()}


def mimo_keys(config: Any) -> dict[str, Any]:
    slides, heads = _slides(config), config.num_key_value_heads
    part = config.rope_parameters["full_attention"]["partial_rotary_factor"]
    return {
        **_rotations(config),
        "attention.head_count_kv": [heads * (1 + slide) for slide in slides],
        "attention.sliding_window": config.sliding_window - 1,  # as published
        "attention.sliding_window_pattern": list(map(int, slides)),
        "attention.value_length": config.v_head_dim,
        "attention.value_scale": config.attention_value_scale,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "rope.dimension_count": int(config.head_dim * part),
    }


def step_keys(config: Any) -> dict[str, Any]:
    slides = _slides(config)
    heads = {False: config.num_attention_heads, True: config.num_sliding_attention_heads}
    limits = {
        f"swiglu_clamp_{part}": [float(limit or 0) for limit in found]
        for part, found in (
            ("exp", config.swiglu_limits),
            ("shexp", config.swiglu_limits_shared),
        )
    }
    return {
        **_rotations(config),
        **limits,
        "attention.head_count": [heads[slide] for slide in slides],
        "attention.head_count_kv": [config.num_key_value_heads for _ in slides],
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": slides,
        "expert_shared_feed_forward_length": config.share_expert_dim,
        "expert_weights_norm": True,
        "expert_weights_scale": config.moe_router_scaling_factor,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
    }


def step_factors(config: Any) -> np.ndarray:
    """Return the factors of full layers' pairs, then those of pairs that only others turn."""
    rope = config.rope_parameters["full_attention"]
    tiny = {
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.hidden_size // config.head_dim,
    }
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**tiny, rope_parameters=rope), "cpu")
    pairs = len(scaled)
    plain = torch.tensor([rope["rope_theta"] ** (-i / pairs) for i in range(pairs)])
    return np.concatenate(((plain / scaled).numpy(), np.full(pairs, 7.0))).astype(np.float32)


def minicpm_keys(config: Any) -> dict[str, Any]:
    return {
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": None,  # which is left out
        "rope.dimension_count": config.qk_rope_head_dim,
    }


def mellum_keys(config: Any) -> dict[str, Any]:
    slides = _slides(config)
    return {
        **_rotations(config),
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": slides,
        "expert_weights_norm": config.norm_topk_prob or None,
    }


def laguna_keys(config: Any) -> dict[str, Any]:
    rope, slides = config.rope_parameters, _slides(config)
    ends = {"": "full_attention", "_swa": "sliding_attention"}
    parts = {end: rope[kind].get("partial_rotary_factor", 1.0) for end, kind in ends.items()}
    layers = config.num_hidden_layers
    return {
        **_rotations(config),
        **{f"rope.dimension_count{e}": int(config.head_dim * p) for e, p in parts.items()},
        "attention.head_count": config.num_attention_heads_per_layer
        or [config.num_attention_heads] * layers,
        "attention.sliding_window": config.sliding_window if any(slides) else None,
        "attention.sliding_window_pattern": slides if any(slides) else None,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config.moe_routed_scaling_factor,
    }


def hy_keys(config: Any) -> dict[str, Any]:
    return {
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config.router_scaling_factor,
    }


def minimax_keys(config: Any) -> dict[str, Any]:
    return {
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk_blocks,
        "attention.indexer.block_size": config.index_block_size,
        "attention.indexer.local_blocks": config.index_local_blocks,
        "expert_feed_forward_length": config.intermediate_size,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "expert_weights_scale": config.routed_scaling_factor,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
        "rope.dimension_count": config.rotary_dim,
    }


def olmo_keys(config: Any) -> dict[str, Any]:
    return {"attention.layer_norm_epsilon": 1e-5, "attention.clamp_kqv": config.clip_qkv}


def olmo(name: str, found: np.ndarray, config: Any) -> Parts:
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if f"{part}_proj" in name:
            found = paired(found, heads)
    return [(name, found)]


def plain(name: str, found: np.ndarray, config: Any) -> Parts:
    """Take latents and experts apart."""
    name = name.replace("attention_sink_bias", "sinks")
    return [p for part in halves(name, found, config) for p in parts_of(*part, "Uneven")]


def step(name: str, found: np.ndarray, config: Any) -> Parts:
    """Leave out parts that see, and add 1 to norms."""
    if "vision" in name or "projector" in name:
        return []
    name = name.replace("e_score_correction_bias", "router_bias.bias").replace(
        "mlp.gate.ro", "moe.ro"
    )
    name = name.replace("language_model.", "")
    return parts_of(name, found + 1 if name.endswith("norm.weight") else found, "Step")


def routed(name: str, found: np.ndarray, config: Any) -> Parts:
    """Take experts apart, and call corrections as the writer's package knows them."""
    if "e_score_correction_bias" in name:
        layer = name.split(".")[2]
        return [(f"model.layers.{layer}.moe.router_bias.bias", found)]
    return parts_of(name, found, "Routed")


def minimax(name: str, found: np.ndarray, config: Any) -> Parts:
    """Take gates and ups apart, and add 1 to norms."""
    found = found + 1 if name.endswith("norm.weight") else found
    prefix, indexer, part = name.partition("self_attn.indexer.")
    if indexer:
        return [(f"blk.{name.split('.')[2]}.indexer.{part}", found)]
    prefix, joined, _ = name.partition("gate_up_proj")
    if joined and "experts." not in name.replace("shared_experts.", ""):
        halves_of = zip(("gate", "up"), np.split(found, 2), strict=True)
        return [(f"{prefix}{part}_proj.weight", half) for part, half in halves_of]
    return routed(name, found, config)


KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "DeepseekV32": glm_keys,
    "GlmMoeDsa": glm_keys,
    "Youtu": latents_of,
    "Mistral4": mistral_keys,
    "MiMoV2Flash": mimo_keys,
    "Step3p7": step_keys,
    "HYV3": hy_keys,
    "Laguna": laguna_keys,
    "Mellum": mellum_keys,
    "MiniCPM3": minicpm_keys,
    "MiniMaxM3VL": minimax_keys,
    "Olmo": olmo_keys,
}
CHANGES: dict[str, Callable[[str, np.ndarray, Any], Parts]] = {
    "DeepseekV32": plain,
    "GlmMoeDsa": plain,
    "Youtu": plain,
    "Mistral4": plain,
    "MiMoV2Flash": plain,
    "Step3p7": step,
    "HYV3": routed,
    "Laguna": routed,
    "Mellum": routed,
    "MiniMaxM3VL": minimax,
    "MiniCPM3": lambda name, found, config: [(name, found)],
    "Olmo": olmo,
}


def deci(name: str, found: np.ndarray, heads: int, shared: int) -> np.ndarray:
    """Bring rows of q and k together that turn together."""
    for part, count in (("q", heads), ("k", shared)):
        if f"{part}_proj" in name:
            found = paired(found, count)
    return found
