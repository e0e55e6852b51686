"""What GGUF files call the architectures of this distribution: configuration and tensors, as data.

A `Family` turns a file's metadata into the values that config.json would have, and tensor names
into those of the original checkpoint. Converters have changed two things, which are turned back:
rows of q and k that rotate by neighboring pairs, and norms that already hold Gemma's 1.
Source: the key and tensor names of ggml's gguf.md; the keys of transformers' configurations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.names import (
    DEEPSEEK_NAMES,
    ERNIE_NAMES,
    GEMMA_NAMES,
    GLM_NAMES,
    GPT_OSS_NAMES,
    GRANITE_MOE_NAMES,
    HUNYUAN_NAMES,
    LLAMA4_NAMES,
    MINIMAX_NAMES,
    MIXTRAL_NAMES,
    MOE_NAMES,
    NAMES,
    OUTER,
    PHI3_NAMES,
    ROUTED_NAMES,
    STACK,
)

Values = dict[str, Any]

#: What files call routers, by how they score experts.
SOFTMAX, SIGMOID = 1, 2
#: Tensors that become part of the configuration.
FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")
_LAYER = re.compile(r"blk\.(\d+)\.([\w.]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Family:
    """Attributes:
    architecture: As `architectures` in config.json spells it.
    differences: Values of config.json beside those that all families have.
    names: Tensor names inside a layer, with or without their last part.
    pairs: Rows of q and k lie so that neighbors rotate together.
    norm_offset: What the file's norms hold more than the checkpoint's.
    latents: Keys and values are made of latents, and need not be of one size.
    """

    architecture: str
    differences: Callable[[Metadata], Values] = lambda meta: {}
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    pairs: bool = False
    norm_offset: float = 0.0
    latents: bool = False

    def known_as(self, name: str) -> str | None:
        """Return the checkpoint's name of a file's tensor.

        Returns:
            The name as it is where it is unknown; None for part of the configuration.
        """
        stem, _, kind = name.rpartition(".")
        if stem in FACTORS:
            return None
        if stem in OUTER:
            return f"{OUTER[stem]}.{kind}"
        layer = _LAYER.fullmatch(name)
        if layer is None:
            return name
        number, part, kind = layer.groups()
        whole = self.names.get(f"{part}.{kind}")
        if whole is None and part in self.names:
            whole = f"{self.names[part]}.{kind}"
        return name if whole is None else f"model.layers.{number}.{whole}"


def family_of(meta: Metadata) -> Family:
    """Return the family of a file.

    Raises:
        CheckpointError: It is unknown, or is not read with experts, or without.
    """
    known = sorted({*FAMILIES, *MIXTURES})
    if meta.arch not in known:
        raise meta.refuse("general.architecture", f"is not read; known are {', '.join(known)}")
    experts = meta.integer("expert_count", 0)
    family = (MIXTURES if experts else FAMILIES).get(meta.arch)
    if family is None:
        kind = "without experts" if meta.arch in MIXTURES else "with experts"
        raise meta.refuse(f"{meta.arch}.expert_count", f"but {meta.arch} is not read {kind}")
    return family


def config_of(meta: Metadata) -> Values:
    """Return what config.json would hold.

    Raises:
        CheckpointError: A key is missing or malformed, or names something that is not served.
    """
    family = family_of(meta)
    heads = meta.integer("attention.head_count")
    hidden = meta.integer("embedding_length")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    if meta.integer("attention.value_length", head_dim) != head_dim and not family.latents:
        raise meta.refuse(f"{meta.arch}.attention.value_length", f"but keys have {head_dim}")
    return {
        "architectures": [family.architecture],
        "dtype": meta.dtype(),
        "vocab_size": meta.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length"),
        "num_hidden_layers": meta.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.integer("context_length"),
        "rms_norm_eps": meta.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in meta.tensors,
        "attention_bias": "blk.0.attn_q.bias" in meta.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in meta.tensors,
        "eos_token_id": meta.ending_ids(),
        "bos_token_id": meta.token_id("bos"),
        **_rope(meta, head_dim),
        **family.differences(meta),
    }


def _rope(meta: Metadata, head_dim: int) -> Values:
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
    return {"rope_parameters": rope | {"rope_type": kind, "factor": factor}}


def _factors(short: list[float], long: list[float]) -> Values:
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long}


def _windowed(meta: Metadata) -> Values:
    window = meta.integer("attention.sliding_window", 0)
    return {"sliding_window": window or None}


def _llama(meta: Metadata) -> Values:
    """Mistral is called llama, too; where a file names a window, it is one."""
    window = _windowed(meta)["sliding_window"]
    return {"architectures": ["MistralForCausalLM"], "sliding_window": window} if window else {}


def _phi3(meta: Metadata) -> Values:
    original = meta.integer("rope.scaling.original_context_length", meta.integer("context_length"))
    return {**_windowed(meta), "original_max_position_embeddings": original}


def _granite(meta: Metadata) -> Values:
    return {
        "attention_multiplier": meta.number("attention.scale"),
        "embedding_multiplier": meta.number("embedding_scale"),
        "residual_multiplier": meta.number("residual_scale"),
        "logits_scaling": meta.number("logit_scale"),
    }


def _experts(meta: Metadata) -> Values:
    """Return how many experts there are; most families that renormalize do not ask the file.

    Raises:
        CheckpointError: Tensors hold other numbers of them, or there are none.
    """
    count, chosen = meta.integer("expert_count"), meta.integer("expert_used_count")
    stacks = [info.shape[0] for name, info in meta.tensors.items() if name.endswith(STACK)]
    if {*stacks} != {count}:
        raise meta.refuse(f"{meta.arch}.expert_count", "but tensors of experts hold another number")
    return {
        "num_experts": count,
        "num_experts_per_tok": chosen,
        "norm_topk_prob": meta.flag(f"{meta.arch}.expert_weights_norm", False),
    }


def _mixtral(meta: Metadata) -> Values:
    return {**_windowed(meta), **_experts(meta)}


def _qwen2_moe(meta: Metadata) -> Values:
    return {
        **_experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "shared_expert_intermediate_size": meta.integer("expert_shared_feed_forward_length"),
        "qkv_bias": "blk.0.attn_q.bias" in meta.tensors,
    }


def _qwen3_moe(meta: Metadata) -> Values:
    return {
        **_experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": meta.flag(f"{meta.arch}.expert_weights_norm", True),
    }


def _granite_moe(meta: Metadata) -> Values:
    shared = meta.integer("expert_shared_feed_forward_length", 0)
    return {
        **_granite(meta),
        **_experts(meta),
        "shared_intermediate_size": shared,
        "experts_by_name": True,
    }


def _llama4(meta: Metadata) -> Values:
    """Files leave out what is the same in all, and that 128 experts go without norms of q and k."""
    chunk = meta.integer("attention.sliding_window", 8192)
    if chunk == 0:
        raise meta.refuse("llama4.attention.sliding_window", "attends within chunks")
    found = _experts(meta)
    return {
        **found,
        "intermediate_size": meta.integer("expert_feed_forward_length"),
        "intermediate_size_mlp": meta.integer("feed_forward_length"),
        "interleave_moe_layer_step": meta.integer("interleave_moe_layer_step", 1),
        "use_qk_norm": found["num_experts"] != 128,
        "attention_chunk_size": chunk,
        "experts_by_name": True,
    }


def _gpt_oss(meta: Metadata) -> Values:
    """The trained rotation is stretched without rounding, which files do not say."""
    rope = _rope(meta, meta.integer("attention.key_length"))["rope_parameters"]
    return {
        **_windowed(meta),
        **_experts(meta),
        "intermediate_size": meta.integer("expert_feed_forward_length"),
        "rope_parameters": rope | {"truncate": False},
        "experts_by_name": True,
    }


def _routed(meta: Metadata, scoring: int = SIGMOID) -> Values:
    """Return experts of a router in DeepSeek's manner, behind layers without any.

    Raises:
        CheckpointError: It scores otherwise.
    """
    if meta.integer("expert_gating_func", scoring) != scoring:
        raise meta.refuse(f"{meta.arch}.expert_gating_func", f"is read as {SIGMOID}, a sigmoid")
    return {
        **_experts(meta),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "n_shared_experts": meta.integer("expert_shared_count", 0),
        "first_k_dense_replace": meta.integer("leading_dense_block_count", 0),
        "n_group": meta.integer("expert_group_count", 1),
        "topk_group": meta.integer("expert_group_used_count", 1),
        "routed_scaling_factor": meta.number("expert_weights_scale", 1.0),
    }


def _glm_moe(meta: Metadata) -> Values:
    further = meta.integer("nextn_predict_layers", 0)
    head_dim = meta.integer("attention.key_length")
    return {
        **_routed(meta),
        "num_hidden_layers": meta.integer("block_count") - further,
        "num_nextn_predict_layers": further,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in meta.tensors,
        "partial_rotary_factor": meta.integer("rope.dimension_count", head_dim) / head_dim,
    }


def _deepseek(meta: Metadata) -> Values:
    """Version 2 has a router of softmax, version 3 one of sigmoids.

    Newer files tell sizes of latents as if these were one head's keys and values.
    """
    rope_dim = meta.integer("rope.dimension_count")
    keys, values = (
        meta.integer(f"attention.{part}_length_mla", meta.integer(f"attention.{part}_length"))
        for part in ("key", "value")
    )
    rope = _rope(meta, rope_dim)["rope_parameters"]
    if temperature := meta.number("rope.scaling.yarn_log_multiplier", 0.0):
        rope |= {"mscale": 10 * temperature, "mscale_all_dim": 10 * temperature}
    found = {
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
    if meta.integer("expert_gating_func", SOFTMAX) != SOFTMAX:
        return {**found, **_routed(meta)}
    groups = meta.integer("expert_group_count", 1)
    method = "greedy" if groups == 1 else "group_limited_greedy"
    version2 = {"architectures": ["DeepseekV2ForCausalLM"], "topk_method": method}
    return {**found, **_routed(meta, SOFTMAX), **version2}


def _dots(meta: Metadata) -> Values:
    return {**_routed(meta), "sliding_window": None}


def _ernie_moe(meta: Metadata) -> Values:
    return {
        **_experts(meta),
        "moe_k": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "moe_num_shared_experts": meta.integer("expert_shared_count", 0),
        "moe_layer_start_index": meta.integer("leading_dense_block_count", 0),
        "moe_layer_interval": meta.integer("interleave_moe_layer_step", 1),
    }


def _minimax(meta: Metadata) -> Values:
    return {**_experts(meta), "intermediate_size": meta.integer("expert_feed_forward_length")}


def _hunyuan_moe(meta: Metadata) -> Values:
    """The base is stretched already."""
    return {
        **_experts(meta),
        "moe_topk": meta.integer("expert_used_count"),
        "moe_intermediate_size": meta.integer("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gemma(meta: Metadata, unlike: int) -> Values:
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
    return {**_windowed(meta), "query_pre_attn_scalar": scalar}


def _gemma2(meta: Metadata) -> Values:
    return {
        **_gemma(meta, unlike=46),
        "attn_logit_softcapping": meta.number("attn_logit_softcapping", 0.0) or None,
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
    }


def _gemma3(meta: Metadata) -> Values:
    """Full layers turn by the file's base and scaling, sliding ones by a base of their own."""
    pattern = meta.get("attention.sliding_window_pattern", 6)
    layers: Values = {"sliding_window_pattern": pattern}
    if isinstance(pattern, list):
        layers = {"layer_types": [_LAYER_TYPES[bool(slides)] for slides in pattern]}
    rope = _rope(meta, meta.integer("attention.key_length"))["rope_parameters"]
    if meta.get("rope.freq_base") is None:
        rope["rope_theta"] = 1_000_000.0
    local = {"rope_type": "default", "rope_theta": meta.number("rope.freq_base_swa", 10_000.0)}
    return {
        **_gemma(meta, unlike=62),
        **layers,
        "final_logit_softcapping": meta.number("final_logit_softcapping", 0.0) or None,
        "rope_parameters": {"full_attention": rope, "sliding_attention": local},
    }


_LAYER_TYPES = {False: "full_attention", True: "sliding_attention"}
#: By general.architecture.
FAMILIES = {
    "llama": Family("LlamaForCausalLM", _llama, pairs=True),
    "qwen2": Family("Qwen2ForCausalLM"),
    "qwen3": Family("Qwen3ForCausalLM"),
    "gemma2": Family("Gemma2ForCausalLM", _gemma2, GEMMA_NAMES, norm_offset=1.0),
    "gemma3": Family("Gemma3ForCausalLM", _gemma3, GEMMA_NAMES, norm_offset=1.0),
    "phi3": Family("Phi3ForCausalLM", _phi3, PHI3_NAMES),
    "granite": Family("GraniteForCausalLM", _granite, pairs=True),
    "smollm3": Family("SmolLM3ForCausalLM", pairs=True),
}
#: Those with experts.
MIXTURES = {
    "llama": Family("MixtralForCausalLM", _mixtral, MIXTRAL_NAMES, pairs=True),
    "qwen2moe": Family("Qwen2MoeForCausalLM", _qwen2_moe, MOE_NAMES),
    "qwen3moe": Family("Qwen3MoeForCausalLM", _qwen3_moe, MOE_NAMES),
    "olmoe": Family("OlmoeForCausalLM", _experts, MOE_NAMES),
    "granitemoe": Family("GraniteMoeForCausalLM", _granite_moe, GRANITE_MOE_NAMES, pairs=True),
    "llama4": Family("Llama4ForCausalLM", _llama4, LLAMA4_NAMES),
    "gpt-oss": Family("GptOssForCausalLM", _gpt_oss, GPT_OSS_NAMES),
    "glm4moe": Family("Glm4MoeForCausalLM", _glm_moe, GLM_NAMES),
    "deepseek2": Family("DeepseekV3ForCausalLM", _deepseek, DEEPSEEK_NAMES, latents=True),
    "dots1": Family("Dots1ForCausalLM", _dots, ROUTED_NAMES),
    "ernie4_5-moe": Family("Ernie4_5_MoeForCausalLM", _ernie_moe, ERNIE_NAMES),
    "minimax-m2": Family("MiniMaxM2ForCausalLM", _minimax, MINIMAX_NAMES),
    "hunyuan-moe": Family("HunYuanMoEV1ForCausalLM", _hunyuan_moe, HUNYUAN_NAMES),
}
