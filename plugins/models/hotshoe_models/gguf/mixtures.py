"""What config.json would hold of mixtures of experts, from the metadata of their GGUF files.

Source: the keys of ggml's gguf.md; the keys of transformers' configurations.
"""

from __future__ import annotations

from hotshoe_models.consolidated import NAMED as EXPERTS_BY_NAME
from hotshoe_models.gguf.dense import (
    Values,
    granite,
    rotation_of,
    windowed,
    windowed_by_layer,
)
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import STACK

#: What files call routers, by how they score experts.
SOFTMAX, SIGMOID = 1, 2
#: Of Mistral Small 4, whose first files leave out how much queries grow.
TEMPERATURE = 0.1


def experts(meta: Metadata) -> Values:
    """Return how many experts there are; most families that renormalize do not ask the file.

    Raises:
        CheckpointError: Tensors hold other numbers of them, or there are none.
    """
    count, chosen = meta.integer("expert_count"), meta.integer("expert_used_count")
    found = (info.shape for name, info in meta.tensors.items() if name.endswith(STACK))
    stacks = [shape[0] for shape in found if len(shape) > 1]  # Arctic's norms are called so, too
    if {*stacks} != {count}:
        raise meta.refuse(f"{meta.arch}.expert_count", "but tensors of experts hold another number")
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": meta.flag(f"{meta.arch}.expert_weights_norm", False),
    }


def mixtral(meta: Metadata) -> Values:
    return {**windowed(meta), **experts(meta)}


def qwen2_moe(meta: Metadata) -> Values:
    return {
        **experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
        "qkv_bias": "blk.0.attn_q.bias" in meta.tensors,
    }


def qwen3_moe(meta: Metadata) -> Values:
    return {
        **experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": meta.flag(f"{meta.arch}.expert_weights_norm", True),
    }


def granite_moe(meta: Metadata) -> Values:
    shared = meta.integer("expert_shared_feed_forward_length", 0)
    return {
        **granite(meta),
        **experts(meta),
        "shared_intermediate_size": shared,
        "experts_by_name": True,
    }


def llama4(meta: Metadata) -> Values:
    """Files leave out what is the same in all, and that 128 experts go without norms of q and k."""
    chunk = meta.integer("attention.sliding_window", 8192)
    if chunk == 0:
        raise meta.refuse("llama4.attention.sliding_window", "attends within chunks")
    found = experts(meta)
    return {
        **found,
        "intermediate_size": meta.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": meta.integer("feed_forward_length"),
        "interleave_moe_layer_step": meta.integer("interleave_moe_layer_step", 1),
        "use_qk_norm": found["num_experts"] != 128,
        "attention_chunk_size": chunk,
        "experts_by_name": True,
    }


def gpt_oss(meta: Metadata) -> Values:
    """The trained rotation is stretched without rounding, which files do not say."""
    rope = rotation_of(meta, meta.integer("attention.key_length"))["rope_parameters"]
    return {
        **windowed(meta),
        **experts(meta),
        "intermediate_size": meta.integer("expert_feed_forward_length"),
        "rope_parameters": rope | {"truncate": False},
        "experts_by_name": True,
    }


def routed(meta: Metadata, scoring: int = SIGMOID) -> Values:
    """Return experts of a router in DeepSeek's manner, behind layers without any.

    Raises:
        CheckpointError: It scores otherwise.
    """
    if meta.integer("expert_gating_func", scoring) != scoring:
        raise meta.refuse(f"{meta.arch}.expert_gating_func", f"is read as {SIGMOID}, a sigmoid")
    return {
        **experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "n_shared_experts": meta.integer("expert_shared_count", 0),
        "first_k_dense_replace": meta.integer("leading_dense_block_count", 0),
        "n_group": meta.integer("expert_group_count", 1),
        "topk_group": meta.integer("expert_group_used_count", 1),
        "routed_scaling_factor": meta.number("expert_weights_scale", 1.0),
    }


def glm_moe(meta: Metadata) -> Values:
    further = meta.integer("nextn_predict_layers", 0)
    head_dim = meta.integer("attention.key_length")
    return {
        **routed(meta),
        "num_hidden_layers": meta.integer("block_count") - further,
        "num_nextn_predict_layers": further,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in meta.tensors,
        "partial_rotary_factor": meta.integer("rope.dimension_count", head_dim) / head_dim,
    }


def ling(meta: Metadata) -> Values:
    """Return keys of Ling 2, which has GLM's layers under other names."""
    found = glm_moe(meta)
    return {
        **found,
        "num_shared_experts": found["n_shared_experts"],
        "use_qkv_bias": "blk.0.attn_qkv.bias" in meta.tensors,
        "moe_router_enable_expert_bias": True,
    }


def latents(meta: Metadata) -> Values:
    """Return sizes and the rotation of latent attention.

    Newer files tell sizes of latents as if these were one head's keys and values.
    """
    rope_dim = meta.integer("rope.dimension_count")
    keys, values = (
        meta.integer(f"attention.{part}_length_mla", meta.integer(f"attention.{part}_length"))
        for part in ("key", "value")
    )
    rope = rotation_of(meta, rope_dim)["rope_parameters"]
    if temperature := meta.number("rope.scaling.yarn_log_multiplier", 0.0):
        rope |= {"mscale": 10 * temperature, "mscale_all_dim": 10 * temperature}
    return {
        "num_key_value_heads": meta.integer("attention.head_count"),
        "head_dim": rope_dim,
        "q_lora_rank": meta.integer("attention.q_lora_rank", 0) or None,
        "kv_lora_rank": meta.integer("attention.kv_lora_rank"),
        "qk_nope_head_dim": keys - rope_dim,
        "qk_rope_head_dim": rope_dim,
        "v_head_dim": values,
        "rope_parameters": rope,
        "num_nextn_predict_layers": 0,
    }


def mistral4(meta: Metadata) -> Values:
    """Queries grow with their positions. Mistral Large 3 is called deepseek2, and is such a model.

    Raises:
        CheckpointError: A key is missing or malformed.
    """
    found = latents(meta)
    rope, length = found["rope_parameters"], "attention.temperature_length"
    if original := rope.get("original_max_position_embeddings"):
        rope["llama_4_scaling_beta"] = meta.number("attention.temperature_scale", TEMPERATURE)
    if meta.integer(length, original or 0) != (original or 0):
        raise meta.refuse(f"{meta.arch}.{length}", "but is read as that of the stretched rotation")
    return {
        **found,
        **routed(meta, SOFTMAX),
        "architectures": ["Mistral4ForCausalLM"],
        EXPERTS_BY_NAME: True,
    }


def deepseek(meta: Metadata) -> Values:
    """Version 2 has a router of softmax, version 3 one of sigmoids."""
    if meta.number("attention.temperature_scale", 0.0):
        return mistral4(meta)
    found = latents(meta)
    if meta.integer("expert_gating_func", SOFTMAX) != SOFTMAX:
        return {**found, **routed(meta)}
    groups = meta.integer("expert_group_count", 1)
    method = "greedy" if groups == 1 else "group_limited_greedy"
    version2 = {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": method}
    return {**found, **routed(meta, SOFTMAX), **version2}


def dots(meta: Metadata) -> Values:
    return {**routed(meta), "sliding_window": None}


def afmoe(meta: Metadata) -> Values:
    """Files leave out that one of four layers has no window, and that embeddings are scaled."""
    found = routed(meta)
    return {
        **windowed(meta),
        **found,
        "num_shared_experts": found["n_shared_experts"],
        "num_dense_layers": found["first_k_dense_replace"],
        "route_scale": found["routed_scaling_factor"],
        "route_norm": found["norm_topk_prob"],
        "mup_enabled": True,
    }


def exaone_moe(meta: Metadata) -> Values:
    """Layers that predict further tokens come last, and are not read."""
    found = routed(meta)
    layers = meta.integer("block_count") - meta.integer("nextn_predict_layers", 0)
    windows = windowed_by_layer(meta)
    return {
        **found,
        "num_hidden_layers": layers,
        "sliding_window": windows["sliding_window"],
        "layer_types": windows["layer_types"][:layers],
        "num_shared_experts": found["n_shared_experts"],
    }


def phi_moe(meta: Metadata) -> Values:
    """Two experts are chosen one after the other, with a noise that files leave out."""
    found = experts(meta)
    return {
        **windowed(meta),
        "num_local_experts": found["num_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "lm_head_bias": "output.bias" in meta.tensors,
    }


def ernie_moe(meta: Metadata) -> Values:
    return {
        **experts(meta),
        "moe_k": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": meta.integer("expert_shared_count", 0),
        "moe_layer_start_index": meta.integer("leading_dense_block_count", 0),
        "moe_layer_interval": meta.integer("interleave_moe_layer_step", 1),
    }


def minimax(meta: Metadata) -> Values:
    return {**experts(meta), "intermediate_size": meta.integer("expert_feed_forward_length")}


def hunyuan_moe(meta: Metadata) -> Values:
    """The base is stretched already."""
    return {
        **experts(meta),
        "moe_topk": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }
