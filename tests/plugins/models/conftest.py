"""Tiny random checkpoints of every family, made by transformers itself, and ways to run them.

`variant` parametrises a test over all of VARIANTS. `checkpoints.get(variant)` is a saved model
directory with its transformers model; `Stepper` runs Hotshoe's model on it by hand-made batches.
"""

import copy
import inspect
import json
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import call
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file, save_file
from torch import Tensor

from hotshoe.layers import BuildContext, ForwardBatch, assign_views
from hotshoe.loader import load_weights
from hotshoe.models import ModelConfig
from hotshoe.platform import Available, DeviceFacts
from hotshoe.runner.graphs import Pieces
from hotshoe.slots import SLOTS, CacheView, Selector, StepShape
from hotshoe.slots.base import resolve_lazy
from hotshoe.types import CacheGroup, CacheLayout
from hotshoe_cuda.platform import CudaPlatform
from hotshoe_models.plugin import ARCHITECTURES, IMPLEMENTATIONS

VOCAB = 256
#: Logits may differ by so much of the largest one, so that nearer tokens may change places.
TIE = 1e-4
#: Relative error of what a router sees, far above that of float32.
NEAR = 1e-5
#: What a router says of a token changes by less, unless it has chosen otherwise.
JUMP = 1e-2
#: Far below every score of a token that is seen.
HIDDEN = -1e30
#: Relative change of weights that stands for the rounding of what is computed with them.
ROUNDING = 1e-6
LENGTH = 64
#: Of every layer that a `Stepper` runs.
BLOCKS = 128
CPU = DeviceFacts("plain", "cpu", "a test's device", "any", 1 << 30, 1)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 200.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
BARE = {
    "vocab_size": 64,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}


@dataclass(frozen=True)
class Variant:
    """One configuration.

    Attributes:
        values: What differs from SIZES.
        raw: config.json holds just these values, older spellings and all, instead of what
            transformers writes.
        end_to_end: Run it through the whole engine too.
        impl: Whose code computes it, as `--model-impl` names it.
        whole: Of a model that sees: what config.json has beside its text part.
        flat: config.json has the text part's values at its top.
        undivided: Stages cannot divide its layers.
    """

    name: str
    family: str
    values: dict[str, Any] = field(default_factory=dict)
    max_model_len: int = LENGTH
    raw: bool = False
    end_to_end: bool = False
    impl: str = "auto"
    whole: dict[str, Any] | None = None
    undivided: bool = False
    flat: bool = False

    @property
    def chooses(self) -> bool:
        """Whether a token has fewer experts than there are, or attends to chosen tokens."""
        if {"index_topk", "indexer_budget"} & self.values.keys():
            return True
        values = {**self.values, **self.values.get("ffn_config", {})}
        counts = [values[key] for key in COUNTS if key in values]
        chosen = [values[key] for key in CHOSEN if key in values]
        return bool(counts) and counts != chosen

    @property
    def groups_tokens(self) -> bool:
        """Whether it reads several tokens as one, which sizes of blocks fit."""
        grouping = {"compress_rate_hca", "index_block_size", "index_kpool"}
        grouping.add("indexer_compress_ratio")
        return not grouping.isdisjoint(self.values)

    @property
    def keeps_entries(self) -> bool:
        """Whether entries of its cache stand for several tokens."""
        kinds = {"compress_rate_hca", "index_kpool", "indexer_compress_ratio"}
        return not kinds.isdisjoint(self.values)


def longrope(pairs: int, original: int = 32) -> dict[str, Any]:
    """Make factors that differ from pair to pair."""
    return {
        "short_factor": [1.0 + 0.1 * i for i in range(pairs)],
        "long_factor": [2.0 + 0.7 * i for i in range(pairs)],
        "original_max_position_embeddings": original,
    }


def without(values: dict[str, Any], key: str) -> dict[str, Any]:
    """Copy all entries but one."""
    return {k: v for k, v in values.items() if k != key}


LONGROPE = {"rope_type": "longrope"}
TIED = {"tie_word_embeddings": True}
UNTIED = {"tie_word_embeddings": False}
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0},
}
COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_top_k", "moe_k", "moe_topk", "top_k_experts")
EXPERTS = {"moe_intermediate_size": 40, "num_experts_per_tok": 2}
GROUPS = {
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 3,
}
#: Fewer tokens than any text but the shortest has.
COMPRESSED = {
    "num_hidden_layers": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "qk_rope_head_dim": 8,
    "q_lora_rank": 20,
    "intermediate_size": 24,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "num_hash_layers": 2,
    "compress_rate_hca": 8,
    "sliding_window": 5,
    "o_groups": 4,
    "o_lora_rank": 12,
    "index_n_heads": 3,
    "index_head_dim": 16,
    "index_topk": 3,
    "hc_mult": 3,
    "swiglu_limit": 1.5,
}
INDEX = {"index_topk": 9, "index_head_dim": 16, "index_n_heads": 8}
VARIANTS = [
    Variant("llama", "Llama", {"num_key_value_heads": 4}, end_to_end=True),
    Variant("llama-tied-gqa", "Llama", {"num_key_value_heads": 1, **TIED}, end_to_end=True),
    Variant(
        "llama-biases-head-dim",
        "Llama",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 24, "hidden_act": "gelu"},
    ),
    Variant("llama-linear", "Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
    Variant(
        "llama-dynamic",
        "Llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0},
            "max_position_embeddings": 16,
        },
    ),
    Variant("llama-llama3", "Llama", {"rope_parameters": LLAMA3_ROPE}, end_to_end=True),
    Variant("mistral", "Mistral", {"sliding_window": 7}, end_to_end=True),
    Variant("mistral-full", "Mistral", {"sliding_window": None, "head_dim": 32}),
    Variant("qwen2", "Qwen2", {"rope_parameters": YARN_ROPE}, end_to_end=True),
    Variant(
        "qwen2-windows",
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1, **TIED},
        raw=True,
    ),
    Variant("qwen3", "Qwen3", {"head_dim": 32, **TIED}, end_to_end=True),
    Variant(
        "qwen3-biases-windows",
        "Qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 0.5},
        },
    ),
    Variant(
        "gemma2",
        "Gemma2",
        {"head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 20},
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "gemma2-uncapped",
        "Gemma2",
        {
            "head_dim": 24,
            "sliding_window": 9,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            **UNTIED,
        },
    ),
    Variant(
        "gemma3",
        "Gemma3",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "rope_parameters": GEMMA3_ROPE,
            "final_logit_softcapping": 5.0,
        },
        end_to_end=True,
    ),
    Variant("gemma3-plain", "Gemma3", {"head_dim": 32, "sliding_window": 8, **UNTIED}, raw=True),
    Variant("phi3", "Phi3", end_to_end=True),
    Variant(
        "phi3-partial-window",
        "Phi3",
        {"rope_parameters": {"partial_rotary_factor": 0.5}, "sliding_window": 7, **TIED},
    ),
    Variant(
        "phi3-longrope-short",
        "Phi3",
        {"rope_parameters": {**longrope(8), **LONGROPE}},
        32,
        end_to_end=True,
    ),
    Variant(
        "phi3-longrope-long",
        "Phi3",
        {"rope_parameters": {**longrope(6), **LONGROPE, "partial_rotary_factor": 0.75}},
    ),
    Variant(
        "granite",
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
        end_to_end=True,
    ),
    Variant(
        "granite-biases",
        "Granite",
        {"attention_bias": True, "mlp_bias": True, "attention_multiplier": 0.3, **TIED},
    ),
    Variant(
        "smollm3",
        "SmolLM3",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 2},
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "smollm3-windows",
        "SmolLM3",
        {
            "no_rope_layers": [1, 0, 1],
            "use_sliding_window": True,
            "sliding_window": 6,
            "attention_bias": True,
            "mlp_bias": True,
            **UNTIED,
        },
    ),
    Variant(
        "llama-older-linear",
        "Llama",
        {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.5}},
        raw=True,
    ),
    Variant(
        "llama-older-llama3",
        "Llama",
        {"rope_theta": 300.0, "rope_scaling": without(LLAMA3_ROPE, "rope_theta")},
        raw=True,
    ),
    Variant(
        "qwen2-older-yarn",
        "Qwen2",
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 16,
                "truncate": False,
            }
        },
        raw=True,
    ),
    Variant("mistral-older", "Mistral", {"rope_theta": 50.0, "sliding_window": 9}, raw=True),
    Variant(
        "gemma3-older",
        "Gemma3",
        {
            "head_dim": 16,
            "rope_theta": 9000.0,
            "rope_local_base_freq": 90.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "sliding_window_pattern": 2,
            "sliding_window": 6,
        },
        raw=True,
    ),
    Variant(
        "deepseek-v2",
        "DeepseekV2",
        {
            **LATENT,
            "q_lora_rank": None,
            "rope_theta": 200.0,
            "rope_scaling": {
                **without(YARN_ROPE, "rope_theta"),
                "type": "yarn",
                "mscale": 0.7,
                "mscale_all_dim": 0.9,
            },
        },
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "deepseek-v2-biases",
        "DeepseekV2",
        {**LATENT, "attention_bias": True, "mlp_bias": True, "v_head_dim": 40},
    ),
    Variant(
        "deepseek-v3",
        "DeepseekV3",
        {**LATENT, "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}},
        end_to_end=True,
    ),
    Variant(
        "deepseek-v3-halves",
        "DeepseekV3",
        {**LATENT, "q_lora_rank": None, "rope_interleave": False, "attention_bias": True, **TIED},
    ),
    Variant(
        "deepseek-v2-experts",
        "DeepseekV2",
        {
            **LATENT,
            **EXPERTS,
            "first_k_dense_replace": 1,
            "n_routed_experts": 6,
            "n_shared_experts": 2,
            "routed_scaling_factor": 1.5,
        },
    ),
    Variant(
        "deepseek-v2-groups",
        "DeepseekV2",
        {
            **LATENT,
            **EXPERTS,
            **without(GROUPS, "norm_topk_prob"),
            "first_k_dense_replace": 0,
            "topk_method": "group_limited_greedy",
            "n_shared_experts": 1,
        },
        end_to_end=True,
    ),
    Variant(
        "deepseek-v3-experts",
        "DeepseekV3",
        {**LATENT, **EXPERTS, **GROUPS, "first_k_dense_replace": 1, "n_shared_experts": 1},
        end_to_end=True,
    ),
    Variant(
        "glm4-moe-lite",
        "Glm4MoeLite",
        {
            **without(LATENT, "first_k_dense_replace"),
            **EXPERTS,
            **GROUPS,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
        end_to_end=True,
    ),
    Variant(
        "deepseek-v3.2",
        "DeepseekV32",
        {**LATENT, **INDEX, "rope_parameters": {**YARN_ROPE, "mscale": 1.0, "mscale_all_dim": 1.0}},
        end_to_end=True,
    ),
    Variant(
        "deepseek-v3.2-experts",
        "DeepseekV32",
        {
            **LATENT,
            **INDEX,
            **EXPERTS,
            **GROUPS,
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
    ),
    Variant(
        "deepseek-v4",
        "DeepseekV4",
        {**COMPRESSED, "layer_types": None, "compress_ratios": [0, 4, 128, 4]},
        end_to_end=True,
        undivided=True,
    ),
    Variant(
        "deepseek-v4-described",
        "DeepseekV4",
        {
            **COMPRESSED,
            "num_hash_layers": 0,
            "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
            "rope_scaling": {**YARN_ROPE, "rope_theta": None},
            "hc_mult": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 4,
            "index_topk": 100,
        },
        raw=True,
        undivided=True,
    ),
    Variant(
        "glm-moe-dsa",
        "GlmMoeDsa",
        {
            **LATENT,
            **INDEX,
            **EXPERTS,
            **without(GROUPS, "n_group"),
            "topk_group": 1,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "indexer_types": ["full", "shared", "full"],
        },
        end_to_end=True,
    ),
    Variant(
        "glm-moe-dsa-pattern",
        "GlmMoeDsa",
        {
            **LATENT,
            **INDEX,
            "num_hidden_layers": 4,
            "first_k_dense_replace": 4,
            "index_topk_freq": 2,
        },
        raw=True,
    ),
    Variant("youtu", "Youtu", without(LATENT, "first_k_dense_replace")),
    Variant("phi3-older", "Phi3", {"rope_scaling": {**longrope(8, 16), "type": "su"}}, raw=True),
    Variant("apertus", "Apertus", {"hidden_size": 96, **TIED}, end_to_end=True),
    Variant(
        "apertus-biases",
        "Apertus",
        {"attention_bias": True, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
        raw=True,
    ),
    Variant("olmo-described", "Olmo", {"clip_qkv": 0.8, **TIED}, end_to_end=True),
    Variant("olmo-defaults", "Olmo", {"attention_bias": True}, raw=True),
    Variant("olmo2", "Olmo2", end_to_end=True),
    Variant("olmo2-biases", "Olmo2", {"attention_bias": True, "num_key_value_heads": 4, **TIED}),
    Variant(
        "olmo3",
        "Olmo3",
        {
            "sliding_window": 6,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        end_to_end=True,
    ),
    Variant("olmo3-older", "Olmo3", {"sliding_window": 7, "num_hidden_layers": 4}, raw=True),
    Variant("glm", "Glm", {"head_dim": 16, "num_key_value_heads": 4}),
    Variant("glm4", "Glm4", {"head_dim": 24, **TIED}, end_to_end=True),
    Variant("glm4-older", "Glm4", {"head_dim": 16, "attention_bias": False}, raw=True),
    Variant(
        "mixtral",
        "Mixtral",
        {"num_local_experts": 4, "sliding_window": 7},
        end_to_end=True,
    ),
    Variant(
        "mixtral-all-experts",
        "Mixtral",
        {"num_local_experts": 3, "num_experts_per_tok": 3},
        end_to_end=True,
    ),
    Variant("mixtral-one-expert", "Mixtral", {"num_local_experts": 1, "num_experts_per_tok": 1}),
    Variant(
        "qwen2-moe",
        "Qwen2Moe",
        {**EXPERTS, "num_experts": 6, "shared_expert_intermediate_size": 56},
        end_to_end=True,
    ),
    Variant(
        "qwen2-moe-sparse-windows",
        "Qwen2Moe",
        {
            **EXPERTS,
            "num_experts": 5,
            "shared_expert_intermediate_size": 24,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 6,
            "max_window_layers": 2,
            "norm_topk_prob": True,
            "qkv_bias": False,
        },
        raw=True,
    ),
    Variant(
        "qwen3-moe",
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 8, "head_dim": 24, "norm_topk_prob": True},
        end_to_end=True,
    ),
    Variant(
        "qwen3-moe-mixed-windows",
        "Qwen3Moe",
        {
            **EXPERTS,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 9,
            "attention_bias": True,
        },
    ),
    Variant(
        "gpt-oss",
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 6,
            "swiglu_limit": 1.5,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
        },
        end_to_end=True,
    ),
    Variant(
        "gpt-oss-older",
        "GptOss",
        {
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "head_dim": 16,
            "sliding_window": 9,
            "rope_theta": 200.0,
            "rope_scaling": {**without(YARN_ROPE, "rope_theta"), "truncate": False},
        },
        raw=True,
    ),
    Variant(
        "glm4-moe",
        "Glm4Moe",
        {
            **EXPERTS,
            **GROUPS,
            "head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
        end_to_end=True,
    ),
    Variant(
        "glm4-moe-plain",
        "Glm4Moe",
        {**EXPERTS, "n_routed_experts": 6, "head_dim": 16, "norm_topk_prob": False},
        raw=True,
    ),
    Variant(
        "dots1",
        "Dots1",
        {
            **EXPERTS,
            **GROUPS,
            "n_shared_experts": 2,
            "first_k_dense_replace": 2,
            "sliding_window": 6,
            "max_window_layers": 1,
            "attention_bias": True,
        },
    ),
    Variant(
        "granite-moe",
        "GraniteMoe",
        {
            "num_local_experts": 5,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
        end_to_end=True,
    ),
    Variant(
        "granite-moe-shared",
        "GraniteMoeShared",
        {
            "num_local_experts": 4,
            "attention_multiplier": 0.3,
            "shared_intermediate_size": 40,
            **TIED,
        },
    ),
    Variant("ernie4_5", "Ernie4_5", {"head_dim": 16}, end_to_end=True),
    Variant(
        "ernie4_5-moe",
        "Ernie4_5_Moe",
        {
            "moe_intermediate_size": 40,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "num_hidden_layers": 4,
            "moe_layer_interval": 2,
            **UNTIED,
        },
        end_to_end=True,
    ),
    Variant(
        "ernie4_5-moe-between",
        "Ernie4_5_Moe",
        {
            "moe_intermediate_size": 40,
            "moe_num_experts": 4,
            "moe_k": 3,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 0,
            "moe_layer_end_index": 1,
        },
    ),
    Variant("olmoe", "Olmoe", {"num_experts": 6, "num_experts_per_tok": 3}, end_to_end=True),
    Variant(
        "olmoe-normed",
        "Olmoe",
        {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "clip_qkv": 0.7},
    ),
    Variant(
        "minimax-m2",
        "MiniMaxM2",
        {"num_local_experts": 8, "num_experts_per_tok": 3, "head_dim": 24, "rotary_dim": 12},
        end_to_end=True,
    ),
]
HYBRID = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 12,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 8,
}
MAMBA2 = {"num_heads": 4, "head_dim": 32, "state_size": 12, "n_groups": 2, "chunk_size": 8}
#: Models that keep a state of each sequence.
VARIANTS += [
    Variant(
        "falcon-h1",
        "FalconH1",
        {
            **HYBRID,
            "mamba_d_ssm": 32,
            "embedding_multiplier": 1.7,
            "lm_head_multiplier": 0.6,
            "key_multiplier": 0.8,
            "attention_in_multiplier": 0.9,
            "attention_out_multiplier": 0.7,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.5,
            "mlp_multipliers": [0.8, 0.6],
            "ssm_multipliers": [0.9, 0.8, 1.1, 1.2, 0.7],
        },
        end_to_end=True,
    ),
    Variant(
        "falcon-h1-normed",
        "FalconH1",
        {
            **HYBRID,
            "mamba_d_ssm": None,
            "mamba_d_head": "auto",
            "mamba_rms_norm": True,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            **TIED,
        },
    ),
    Variant(
        "falcon-h1-normed-last",
        "FalconH1",
        {**HYBRID, "mamba_d_ssm": 32, "mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    Variant(
        "bamba",
        "Bamba",
        {**HYBRID, "mamba_d_head": 32, "attn_layer_indices": [1]},
        end_to_end=True,
    ),
    Variant(
        "bamba-without-attention",
        "Bamba",
        {**HYBRID, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_proj_bias": True, **TIED},
    ),
    Variant(
        "granite-hybrid",
        "GraniteMoeHybrid",
        {
            **HYBRID,
            "mamba_d_head": 32,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 40,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.4,
            "logits_scaling": 2.5,
        },
        end_to_end=True,
    ),
    Variant(
        "granite-hybrid-dense",
        "GraniteMoeHybrid",
        {
            **HYBRID,
            "mamba_d_head": 32,
            "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 72,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
            "attention_bias": True,
            **TIED,
        },
    ),
    Variant("mamba2", "Mamba2", {**MAMBA2, "hidden_act": "silu"}, end_to_end=True),
    Variant(
        "mamba2-biases",
        "Mamba2",
        {**MAMBA2, "use_bias": True, "use_conv_bias": False, "conv_kernel": 3, **TIED},
    ),
]
MAMBA = {"state_size": 8, "hidden_act": "silu"}
JAMBA = {
    "num_hidden_layers": 4,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "num_experts": 5,
    "mamba_d_state": 8,
}
VARIANTS += [
    Variant("mamba", "Mamba", MAMBA, end_to_end=True),
    Variant(
        "mamba-biases",
        "Mamba",
        {
            **MAMBA,
            "use_bias": True,
            "use_conv_bias": False,
            "conv_kernel": 3,
            "time_step_rank": 5,
            **UNTIED,
        },
    ),
    Variant("falcon-mamba", "FalconMamba", {**MAMBA, "mixer_rms_eps": 1e-3}),
    Variant("jamba", "Jamba", JAMBA, end_to_end=True),
    Variant(
        "jamba-dense",
        "Jamba",
        {**JAMBA, "num_experts": 1, "mamba_dt_rank": 3, "mamba_proj_bias": True, **TIED},
        raw=True,
    ),
]
LFM2 = {"layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5}
VARIANTS += [
    Variant("lfm2", "Lfm2", {**LFM2, "block_multiple_of": 8}, end_to_end=True),
    Variant(
        "lfm2-older",
        "Lfm2",
        {
            "full_attn_idxs": [0, 2],
            "block_ff_dim": 80,
            "block_ffn_dim_multiplier": 0.7,
            "block_multiple_of": 16,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_embedding": False,
        },
        raw=True,
    ),
    Variant(
        "lfm2-moe",
        "Lfm2Moe",
        {
            **LFM2,
            **EXPERTS,
            "num_experts": 6,
            "num_dense_layers": 1,
            "routed_scaling_factor": 1.5,
        },
        end_to_end=True,
    ),
]
#: Blocks that repeat and end within a turn, heads of fewer channels than others have.
RECURRENT = {"num_hidden_layers": 5, "attention_window_size": 6, "conv1d_width": 3}
VARIANTS += [
    Variant("recurrent-gemma", "RecurrentGemma", {**RECURRENT, "lru_width": 48}, end_to_end=True),
    Variant(
        "recurrent-gemma-bias",
        "RecurrentGemma",
        {**RECURRENT, "attention_bias": True, "num_key_value_heads": 1},
    ),
]
VARIANTS += [
    Variant("xlstm", "xLSTM", {"num_heads": 4}, end_to_end=True),
    Variant(
        "xlstm-wide-keys",
        "xLSTM",
        {
            "num_heads": 4,
            "chunk_size": 8,
            "v_dim_factor": 0.5,
            "qk_dim_factor": 1.0,
            "gate_soft_cap": 4.0,
        },
    ),
]
LFM3 = {"sliding_window": 6, "head_dim": 16, "num_hidden_layers": 4, "vocab_size": VOCAB}
VARIANTS += [
    Variant("lfm3", "Lfm3", {**LFM3, "num_hidden_layers": 5}, raw=True, end_to_end=True),
    Variant(
        "lfm3-plain",
        "Lfm3",
        {
            **LFM3,
            "layer_types": ["full_attention", "conv", "full_attention", "conv"],
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "conv_bias": True,
            **UNTIED,
        },
    ),
    Variant("nanochat", "NanoChat", end_to_end=True),
    Variant("bloom", "Bloom", end_to_end=True),
    Variant("bloom-12-heads", "Bloom", {"hidden_size": 96, "num_attention_heads": 12, **UNTIED}),
    Variant("mpt", "Mpt", end_to_end=True),
    Variant(
        "mpt-clipped",
        "Mpt",
        {
            "hidden_size": 96,
            "num_attention_heads": 12,
            "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.2},
        },
    ),
    Variant(
        "falcon-rw",
        "Falcon",
        {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
        end_to_end=True,
    ),
    Variant("nanochat-biases", "NanoChat", {"attention_bias": True, **TIED}),
    Variant(
        "axk1",
        "AXK1",
        {
            **without(LATENT, "first_k_dense_replace"),
            **EXPERTS,
            **GROUPS,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        end_to_end=True,
    ),
    Variant(
        "flint",
        "Flint",
        {
            **EXPERTS,
            "num_hidden_layers": 5,
            "head_dim": 16,
            "sliding_window": 6,
            "num_experts": 6,
            "shared_expert_intermediate_size": 24,
        },
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "laguna",
        "Laguna",
        {
            **EXPERTS,
            "head_dim": 16,
            "sliding_window": 6,
            "num_experts": 6,
            "shared_expert_intermediate_size": 24,
            "num_attention_heads_per_layer": [4, 8, 4],
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "moe_routed_scaling_factor": 1.5,
        },
        end_to_end=True,
    ),
    Variant(
        "laguna-gates-of-channels",
        "Laguna",
        {
            **EXPERTS,
            "head_dim": 16,
            "num_experts": 4,
            "shared_expert_intermediate_size": 24,
            "gating": "per-element",
            "mlp_layer_types": ["sparse", "dense", "dense"],
            **TIED,
        },
    ),
]
DELTA = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
#: Models of linear attention with the gated delta rule.
VARIANTS += [
    Variant(
        "qwen3-next",
        "Qwen3Next",
        {
            **EXPERTS,
            **DELTA,
            "head_dim": 16,
            "num_experts": 6,
            "shared_expert_intermediate_size": 56,
            "partial_rotary_factor": 0.5,
        },
        end_to_end=True,
    ),
    Variant(
        "qwen3-next-dense",
        "Qwen3Next",
        {
            **without(DELTA, "layer_types"),
            "num_hidden_layers": 4,
            "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 3,
            "head_dim": 24,
            "num_experts": 0,
            "full_attention_interval": 2,
            "partial_rotary_factor": 0.25,
            "attention_bias": True,
            **TIED,
        },
        raw=True,
        end_to_end=True,
    ),
]
VARIANTS += [
    Variant(
        "qwen3.5",
        "Qwen3_5",
        {**DELTA, "head_dim": 16, "partial_rotary_factor": 0.5, **TIED},
        end_to_end=True,
    ),
    Variant(
        "qwen3.5-moe",
        "Qwen3_5Moe",
        {
            **EXPERTS,
            **DELTA,
            "head_dim": 16,
            "num_experts": 6,
            "shared_expert_intermediate_size": 40,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5000.0,
                "partial_rotary_factor": 0.25,
                "mrope_section": [1, 1, 0],
                "mrope_interleaved": True,
            },
        },
        end_to_end=True,
    ),
]
#: Heads of k and v are of one size, as transformers cuts the stacked convolution into equal parts.
OLMO_DELTA = {**DELTA, "linear_num_value_heads": 4, "linear_value_head_dim": 12}
VARIANTS += [
    Variant("olmo-hybrid", "OlmoHybrid", OLMO_DELTA, end_to_end=True),
    Variant(
        "lara-mini",
        "LaraMini",
        {
            **EXPERTS,
            **DELTA,
            "num_experts": 6,
            "shared_expert_intermediate_size": 40,
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
            **UNTIED,
        },
        end_to_end=True,
    ),
    Variant(
        "olmo-hybrid-published",
        "OlmoHybrid",
        {
            **without(OLMO_DELTA, "layer_types"),
            "num_hidden_layers": 2,
            "linear_num_key_heads": None,
            "linear_num_value_heads": None,
            "linear_key_head_dim": None,
            "linear_allow_neg_eigval": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
        raw=True,
    ),
]
KIMI = {
    **without(LATENT, "first_k_dense_replace"),
    "q_lora_rank": None,
    "linear_num_heads": 4,
    "linear_head_dim": 12,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
VARIANTS += [
    Variant(
        "kimi-linear",
        "KimiLinear",
        {**KIMI, "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
        end_to_end=True,
    ),
    Variant(
        "kimi-linear-published",
        "KimiLinear",
        {
            **without(without(KIMI, "linear_num_heads"), "linear_head_dim"),
            "linear_attn_config": {
                "full_attn_layers": [3],
                "kda_layers": [1, 2],
                "head_dim": 8,
                "num_heads": 4,
                "short_conv_kernel_size": 3,
            },
            "num_expert_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "num_shared_experts": 2,
            "moe_renormalize": False,
        },
        raw=True,
        end_to_end=True,
    ),
]
LING = {
    **without(LATENT, "first_k_dense_replace"),
    "num_experts": 8,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 40,
    "num_expert_group": 4,
    "topk_group": 2,
    "num_hidden_layers": 2,
    "layer_group_size": 2,
}
VARIANTS += [
    Variant(
        "ling3",
        "BailingHybrid",
        {**LING, "head_dim": 12, "first_k_dense_replace": 1},
        end_to_end=True,
    ),
    Variant(
        "ling3-published",
        "BailingHybrid",
        {
            **LING,
            "head_dim": 8,
            "q_lora_rank": None,
            "first_k_dense_replace": 0,
            "num_shared_experts": 2,
            "moe_renormalize": False,
            "short_conv_kernel_size": 3,
            "kda_safe_gate": False,
            "num_nextn_predict_layers": 0,
        },
        raw=True,
    ),
]
LONGCAT = {
    **without(LATENT, "first_k_dense_replace"),
    "head_dim": 8,
    "num_hidden_layers": 4,
    "expert_ffn_hidden_size": 40,
    "moe_topk": 3,
    "n_routed_experts": 5,
    "zero_expert_num": 3,
}
VARIANTS += [
    Variant("longcat", "LongcatFlash", LONGCAT, end_to_end=True),
    Variant(
        "longcat-published",
        "LongcatFlash",
        {**LONGCAT, "num_hidden_layers": 2, "zero_expert_num": 0, "attention_method": "MLA"},
        raw=True,
    ),
]
ZAYA = {
    "head_dim": 16,
    "num_experts": 5,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 40,
    "router_hidden_size": 24,
    "tie_word_embeddings": True,
}
VARIANTS += [
    Variant("zaya", "Zaya", ZAYA, undivided=True),
    Variant(
        "zaya-windows",
        "Zaya",
        {
            **ZAYA,
            "num_key_value_heads": 1,
            "cca_time0": 4,
            "cca_time1": 3,
            "lm_head_bias": True,
            "sliding_window": 6,
            "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
        },
        undivided=True,
    ),
]
VARIANTS += [
    Variant("gpt-neox-japanese", "GPTNeoXJapanese", {"rotary_pct": 0.5}, end_to_end=True),
    Variant(
        "kolibri",
        "Kolibri1",
        {
            **EXPERTS,
            "num_experts": 6,
            "shared_expert_intermediate_size": 24,
            "head_dim": 16,
            "sliding_window": 7,
            "norm_topk_prob": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        end_to_end=True,
    ),
]
#: Models with layer norms, most of whose MLPs have no gates.
VARIANTS += [
    Variant("starcoder2", "Starcoder2", {"sliding_window": 7}, end_to_end=True),
    Variant(
        "starcoder2-without-biases",
        "Starcoder2",
        {"use_bias": False, "norm_epsilon": 1e-3, "hidden_act": "relu", **UNTIED},
    ),
    Variant("stablelm", "StableLm", end_to_end=True),
    Variant(
        "stablelm-parallel",
        "StableLm",
        {"use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5},
        raw=True,
    ),
    Variant("cohere", "Cohere", {"logit_scale": 0.3, "attention_bias": True}),
    Variant(
        "cohere2",
        "Cohere2",
        {"sliding_window": 6, "sliding_window_pattern": 2, "logit_scale": 0.25},
        raw=True,
        end_to_end=True,
    ),
    Variant("cohere-norms-of-heads", "Cohere", {"logit_scale": 0.9, "use_qk_norm": True}),
    Variant("stablelm-norms-of-heads", "StableLm", {"qk_layernorm": True}, end_to_end=True),
    Variant("phi-norms-of-heads", "Phi", {"qk_layernorm": True}),
    Variant("persimmon", "Persimmon", end_to_end=True),
    Variant(
        "persimmon-without-norms-of-heads",
        "Persimmon",
        {"qk_layernorm": False, "partial_rotary_factor": 0.25, "hidden_act": "gelu", **TIED},
        raw=True,
    ),
    Variant("gpt-neox", "GPTNeoX", end_to_end=True),
    Variant(
        "gpt-neox-sequential",
        "GPTNeoX",
        {
            "use_parallel_residual": False,
            "rotary_pct": 0.5,
            "rotary_emb_base": 300,
            "attention_bias": False,
            **TIED,
        },
        raw=True,
    ),
    Variant("phi", "Phi", end_to_end=True),
    Variant("gpt2", "GPT2", end_to_end=True),
    Variant(
        "gpt2-unscaled",
        "GPT2",
        {"scale_attn_weights": False, "n_inner": 80, "activation_function": "relu", **UNTIED},
    ),
    Variant("gpt-bigcode", "GPTBigCode", end_to_end=True),
    Variant("gpt-bigcode-heads", "GPTBigCode", {"multi_query": False, "n_inner": 80, **UNTIED}),
    Variant(
        "gpt-neo",
        "GPTNeo",
        {"attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 6},
        end_to_end=True,
    ),
    Variant(
        "gpt-neo-global",
        "GPTNeo",
        {
            "attention_types": [[["global"], 3]],
            "intermediate_size": None,
            "activation_function": "gelu",
            **UNTIED,
        },
    ),
    Variant("codegen", "CodeGen", {"num_attention_heads": 8, "rotary_dim": 4}, end_to_end=True),
    Variant("gptj", "GPTJ", {"rotary_dim": 8}, end_to_end=True),
    Variant("gptj-whole-heads", "GPTJ", {"rotary_dim": 16, "activation_function": "relu"}),
    Variant("biogpt", "BioGpt", end_to_end=True),
    Variant("biogpt-unscaled", "BioGpt", {"scale_embedding": False, **UNTIED}),
    Variant("opt", "OPT", {"ffn_dim": 96}, end_to_end=True),
    Variant("opt-without-biases", "OPT", {"ffn_dim": 96, "enable_bias": False, **UNTIED}),
    Variant("falcon", "Falcon", {"ffn_hidden_size": 96}, end_to_end=True),
    Variant(
        "falcon-two-norms",
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        end_to_end=True,
    ),
    Variant(
        "falcon-one-norm",
        "Falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 4,
            "num_ln_in_parallel_attn": 1,
            **UNTIED,
        },
    ),
    Variant(
        "falcon-sequential",
        "Falcon",
        {"multi_query": False, "parallel_attn": False, "layer_norm_epsilon": 1e-3},
        raw=True,
    ),
]
VARIANTS += [
    Variant("nemotron", "Nemotron", end_to_end=True),
    Variant("nemotron-biases", "Nemotron", {"attention_bias": True, "mlp_bias": True, **TIED}),
    Variant("arcee", "Arcee", {"head_dim": 24}, end_to_end=True),
    Variant("arcee-biases", "Arcee", {"attention_bias": True, "mlp_bias": True, **TIED}),
    Variant("seed-oss", "SeedOss", {"head_dim": 24, "attention_out_bias": True}),
    Variant(
        "exaone4",
        "Exaone4",
        {"sliding_window": 6, "sliding_window_pattern": 2},
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "exaone4-full", "Exaone4", {"sliding_window": None, "layer_types": 3 * ["full_attention"]}
    ),
    Variant(
        "ministral",
        "Ministral",
        {
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
]
GEMMA4 = {
    "head_dim": 16,
    "sliding_window": 6,
    "num_hidden_layers": 4,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA3N = {
    "head_dim": 16,
    "sliding_window": 6,
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": VOCAB - 30,
    "laurel_rank": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "activation_sparsity_pattern": [0.9, 0.0, 0.6, 0.0],
}
#: As files have it that say sizes of heads by kind of layer.
GEMMA4_OLDER = {"global_head_dim": 24, "num_global_key_value_heads": 1}
VARIANTS += [
    Variant(
        "gemma4",
        "Gemma4",
        {
            **GEMMA4,
            **GEMMA4_OLDER,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
        },
        end_to_end=True,
        undivided=True,
    ),
    Variant(
        "gemma3n",
        "Gemma3n",
        {**GEMMA3N, "intermediate_size": [96, 48, 96, 80]},
        end_to_end=True,
        undivided=True,
    ),
    Variant(
        "gemma3n-older",
        "Gemma3n",
        {
            **without(without(GEMMA3N, "layer_types"), "activation_sparsity_pattern"),
            "num_hidden_layers": 12,
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 3,
            "altup_active_idx": 1,
            "altup_correct_scale": False,
            "attention_bias": True,
            "rope_theta": 900.0,
            "rope_local_base_freq": 90.0,
            **UNTIED,
        },
        raw=True,
        undivided=True,
    ),
    Variant(
        "gemma4-experts",
        "Gemma4",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "per_layer_config": {
                "1": {"head_dim": 32, "num_key_value_heads": 1},
                "3": {"head_dim": 32, "num_key_value_heads": 1},
            },
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
            "use_bidirectional_attention": "vision",
        },
        end_to_end=True,
    ),
    Variant(
        "gemma4-older",
        "Gemma4",
        {
            **without(GEMMA4, "layer_types"),
            **GEMMA4_OLDER,
            "attention_bias": True,
            "attention_k_eq_v": True,
            "num_hidden_layers": 7,
            "vocab_size_per_layer_input": VOCAB,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 90.0},
                "full_attention": {
                    "rope_type": "proportional",
                    "partial_rotary_factor": 0.5,
                    "factor": 4.0,
                    "rope_theta": 900.0,
                },
            },
            **UNTIED,
        },
        raw=True,
        undivided=True,
    ),
]
NEMOTRON_H = {
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 12,
    "n_groups": 2,
    "chunk_size": 8,
    "head_dim": 16,
}
VARIANTS += [
    Variant(
        "nemotron-h",
        "NemotronH",
        {
            **NEMOTRON_H,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        },
        end_to_end=True,
    ),
    Variant(
        "nemotron-h-older",
        "NemotronH",
        {
            **NEMOTRON_H,
            "hybrid_override_pattern": "M*-",
            "use_bias": True,
            "mlp_bias": True,
            "use_conv_bias": False,
            "time_step_min": 0.4,
        },
        raw=True,
    ),
]
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]
VARIANTS += [
    Variant("gemma", "Gemma", {"head_dim": 24}, end_to_end=True),
    Variant("gemma-older", "Gemma", {"head_dim": 16, "hidden_act": "gelu", **UNTIED}, raw=True),
    Variant("vault-gemma", "VaultGemma", {"head_dim": 16, "sliding_window": 6}),
    Variant("helium-described", "Helium", {"head_dim": 16, "mlp_bias": True, **TIED}),
    Variant("cwm", "Cwm", {"head_dim": 16, "sliding_window": 6, "num_hidden_layers": 5}, raw=True),
    Variant("internlm3", "InternLM3", {"head_dim": 24, "qkv_bias": True, "bias": True}, raw=True),
    Variant("iquest-coder", "IQuestCoder", {"head_dim": 16}, raw=True),
    Variant("jais2", "Jais2"),
    Variant("granite-windows", "GraniteSWA", {"sliding_window": 6, "layer_types": WINDOWS}),
    Variant(
        "granite-windows-bases",
        "GraniteSWA",
        {
            "sliding_window": 7,
            "layer_rope_theta": [0, 300.0, 5_000],
            "attention_multiplier": 0.3,
            "rope_theta": 900.0,
            **UNTIED,
        },
        raw=True,
    ),
    Variant(
        "granite-moe-windows",
        "GraniteMoeSWA",
        {
            "sliding_window": 6,
            "num_local_experts": 5,
            "shared_intermediate_size": 40,
            "attention_multiplier": 0.3,
            "logits_scaling": 2.0,
        },
    ),
    Variant(
        "hyperclovax",
        "HyperCLOVAX",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 0.7},
    ),
    Variant(
        "hyperclovax-plain",
        "HyperCLOVAX",
        {"head_dim": 24, "use_post_norm": False, "attention_multiplier": 0.3, **TIED},
    ),
    Variant(
        "mellum",
        "Mellum",
        {
            **EXPERTS,
            "num_experts": 6,
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": WINDOWS,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
        },
    ),
    Variant(
        "afmoe",
        "Afmoe",
        {
            **EXPERTS,
            "num_experts": 6,
            "head_dim": 24,
            "sliding_window": 6,
            "layer_types": WINDOWS,
            "route_scale": 1.7,
            "mup_enabled": True,
        },
        end_to_end=True,
    ),
    Variant(
        "afmoe-defaults",
        "Afmoe",
        {
            **EXPERTS,
            "num_experts": 5,
            "head_dim": 16,
            "sliding_window": 7,
            "num_shared_experts": 1,
            "num_dense_layers": 2,
            "global_attn_every_n_layers": 2,
        },
        raw=True,
    ),
    Variant(
        "minicpm3",
        "MiniCPM3",
        {
            **without(LATENT, "first_k_dense_replace"),
            "v_head_dim": None,
            "scale_emb": 3,
            "dim_model_base": 24,
        },
    ),
    Variant(
        "minicpm3-published",
        "MiniCPM3",
        {
            **without(without(LATENT, "first_k_dense_replace"), "v_head_dim"),
            "scale_depth": None,
            "rope_scaling": {"type": "longrope", **longrope(4)},
        },
        raw=True,
    ),
    Variant(
        "solar-open",
        "SolarOpen",
        {**EXPERTS, **GROUPS, "head_dim": 24, "n_shared_experts": 2},
    ),
    Variant(
        "flex-olmo-described", "FlexOlmo", {"num_experts": 5, "num_experts_per_tok": 2, **TIED}
    ),
]
NEMOTRON_EXPERTS = {
    **NEMOTRON_H,
    **EXPERTS,
    "n_routed_experts": 6,
    "moe_shared_expert_intermediate_size": 56,
    "routed_scaling_factor": 1.5,
}
VARIANTS += [
    Variant(
        "nemotron-h-experts",
        "NemotronH",
        {
            **NEMOTRON_EXPERTS,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        },
        end_to_end=True,
    ),
    Variant(
        "nemotron-h-latent-experts",
        "NemotronH",
        {
            **NEMOTRON_EXPERTS,
            "hybrid_override_pattern": "ME*E-",
            "moe_latent_size": 24,
            "n_routed_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
        },
        raw=True,
    ),
]
PHI_MOE = {
    "num_local_experts": 6,
    "attention_bias": True,
    "lm_head_bias": True,
    "router_jitter_noise": 0.1,
}
MSCALES = {"short_mscale": 1.2, "long_mscale": 1.4, "rope_theta": 10_000.0}
VARIANTS += [
    Variant("phi-moe", "Phimoe", PHI_MOE, end_to_end=True),
    Variant(
        "phi-moe-longrope",
        "Phimoe",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {**longrope(8), **LONGROPE, **MSCALES},
        },
        max_model_len=32,
    ),
]
#: Parts that see, of models whose text part is served.
TOWER = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_TOWER = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 64,
}
VARIANTS += [
    Variant(
        "gemma3-seeing",
        "Gemma3",
        {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 6, **TIED},
        whole={"vision_config": TOWER},
        end_to_end=True,
    ),
    Variant(
        "gemma3-seeing-published",
        "Gemma3",
        {
            "head_dim": 16,
            "num_key_value_heads": 4,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "rope_theta": 1000.0,
            "rope_local_base_freq": 100.0,
        },
        whole={"vision_config": TOWER},
        raw=True,
    ),
    Variant(
        "gemma4-seeing",
        "Gemma4",
        {**GEMMA4, **GEMMA4_OLDER, "num_kv_shared_layers": 2, **TIED},
        whole={"vision_config": {**TOWER, "head_dim": 16}},
        undivided=True,
    ),
    Variant(
        "gemma4-unified",
        "Gemma4Unified",
        {"head_dim": 16, "sliding_window": 6, "global_head_dim": 24, "num_hidden_layers": 7},
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "gemma4-unified-seeing",
        "Gemma4Unified",
        {
            **GEMMA4_OLDER,
            "head_dim": 16,
            "sliding_window": 6,
            "layer_types": WINDOWS,
            "attention_k_eq_v": True,
            "final_logit_softcapping": 5.0,
            **TIED,
        },
        whole={
            "vision_config": {"patch_size": 4, "mm_embed_dim": 32, "mm_posemb_size": 6},
            "audio_config": None,
        },
    ),
    Variant(
        "lfm2-seeing",
        "Lfm2Vl",
        {"model_type": "lfm2", **LFM2, **TIED},
        whole={"vision_config": {**TOWER, "num_patches": 4}},
    ),
    Variant(
        "minicpm-v",
        "MiniCPMV4_6",
        {"model_type": "qwen3_5_text", **DELTA, "head_dim": 16, **UNTIED},
        whole={"vision_config": TOWER},
    ),
    Variant(
        "idefics2",
        "Idefics2",
        {"model_type": "mistral", "sliding_window": 7, **UNTIED},
        whole={
            "vision_config": TOWER,
            "perceiver_config": {"resampler_depth": 1, "resampler_n_latents": 4},
        },
    ),
    Variant(
        "mistral3",
        "Mistral3",
        {"model_type": "mistral", "head_dim": 24, "sliding_window": None, **UNTIED},
        whole={"vision_config": {**TOWER, "head_dim": 16}},
        end_to_end=True,
    ),
    Variant(
        "qwen3.5-seeing",
        "Qwen3_5",
        {**DELTA, "head_dim": 16, **TIED},
        whole={"vision_config": QWEN_TOWER},
        end_to_end=True,
    ),
    Variant(
        "qwen3.5-moe-seeing",
        "Qwen3_5Moe",
        {
            **EXPERTS,
            **DELTA,
            "head_dim": 16,
            "num_experts": 6,
            "shared_expert_intermediate_size": 40,
            **UNTIED,
        },
        whole={"vision_config": QWEN_TOWER},
    ),
]
QWEN_EAR = {
    "num_mel_bins": 8,
    "encoder_layers": 1,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 32,
    "output_dim": 64,
    "downsample_hidden_size": 8,
}
MROPE = {"rope_theta": 5_000.0, "mrope_section": [2, 3, 3]}
VARIANTS += [
    Variant(
        "qwen2-vl-flat",
        "Qwen2VL",
        {
            **SIZES,
            "rope_theta": 5_000.0,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            **TIED,
        },
        whole={"vision_config": {**QWEN_TOWER, "embed_dim": 32, "hidden_size": 64}},
        raw=True,
        flat=True,
    ),
    Variant(
        "qwen2.5-vl",
        "Qwen2_5_VL",
        {"rope_parameters": {"rope_type": "default", **MROPE}, **UNTIED},
        whole={"vision_config": QWEN_TOWER},
    ),
    Variant(
        "qwen3-vl",
        "Qwen3VL",
        {"head_dim": 24, "rope_parameters": {**MROPE, "mrope_section": [4, 4, 4]}, **TIED},
        whole={"vision_config": {**QWEN_TOWER, "deepstack_visual_indexes": [0]}},
    ),
    Variant(
        "qwen3-vl-moe",
        "Qwen3VLMoe",
        {
            **EXPERTS,
            "num_experts": 6,
            "head_dim": 16,
            "rope_parameters": MROPE,
            **UNTIED,
        },
        whole={"vision_config": {**QWEN_TOWER, "deepstack_visual_indexes": [0]}},
    ),
    Variant(
        "qwen2.5-omni",
        "Qwen2_5OmniThinker",
        {"rope_parameters": {"rope_type": "default", **MROPE}, **UNTIED},
        whole={"vision_config": QWEN_TOWER, "audio_config": QWEN_EAR},
    ),
    Variant(
        "qwen3-omni",
        "Qwen3OmniMoeThinker",
        {**EXPERTS, "num_experts": 6, "head_dim": 16, "rope_parameters": MROPE, **UNTIED},
        whole={
            "vision_config": {**QWEN_TOWER, "deepstack_visual_indexes": [0]},
            "audio_config": QWEN_EAR,
        },
    ),
    Variant(
        "glm4v",
        "Glm4v",
        {"rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}},
        whole={"vision_config": {**QWEN_TOWER, "hidden_size": 64, "out_hidden_size": 64}},
    ),
    Variant(
        "glm4v-moe",
        "Glm4vMoe",
        {
            **EXPERTS,
            **GROUPS,
            "head_dim": 16,
            "n_shared_experts": 1,
            "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]},
            **UNTIED,
        },
        whole={"vision_config": {**QWEN_TOWER, "hidden_size": 64, "out_hidden_size": 64}},
    ),
    Variant(
        "smolvlm",
        "SmolVLM",
        {"model_type": "llama", **TIED},
        whole={"vision_config": TOWER},
    ),
    Variant(
        "kimi-k2.5",
        "Kimi_K25",
        {
            **LATENT,
            **EXPERTS,
            **GROUPS,
            "model_type": "kimi_k2",
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            **UNTIED,
        },
        whole={
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "patch_size": 14,
            }
        },
    ),
]
MINISTRAL_ROPE = {
    **YARN_ROPE,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}
MISTRAL4 = {
    **without(LATENT, "first_k_dense_replace"),
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
}
VARIANTS += [
    Variant(
        "ministral3",
        "Ministral3",
        {"head_dim": 24, "rope_parameters": MINISTRAL_ROPE, **TIED},
        end_to_end=True,
    ),
    Variant("ministral3-defaults", "Ministral3", raw=True),
    Variant(
        "ministral3-windows",
        "Ministral3",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "rope_parameters": {
                **MINISTRAL_ROPE,
                "mscale": 0.7,
                "original_max_position_embeddings": 5,
            },
        },
    ),
    Variant(
        "ministral3-seeing",
        "Mistral3",
        {
            "model_type": "ministral3",
            "head_dim": 16,
            "rope_parameters": MINISTRAL_ROPE,
            **TIED,
        },
        whole={"vision_config": {**TOWER, "head_dim": 16}},
    ),
    Variant(
        "mistral4",
        "Mistral4",
        {**MISTRAL4, "rope_parameters": MINISTRAL_ROPE, **TIED},
        end_to_end=True,
    ),
    Variant("mistral4-defaults", "Mistral4", MISTRAL4, raw=True),
    Variant(
        "mistral4-groups",
        "Mistral4",
        {
            **MISTRAL4,
            **GROUPS,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "rope_interleave": False,
            "attention_bias": True,
            "n_shared_experts": 2,
            "norm_topk_prob": False,
            "rope_parameters": {
                **MINISTRAL_ROPE,
                "mscale": 0.7,
                "partial_rotary_factor": 8 / 24,
            },
        },
    ),
    Variant(
        "mistral4-seeing",
        "Mistral3",
        {**MISTRAL4, "model_type": "mistral4", "rope_parameters": MINISTRAL_ROPE, **UNTIED},
        whole={"vision_config": {**TOWER, "head_dim": 16}},
    ),
]
LLAMA4 = {
    "intermediate_size_mlp": 80,
    "head_dim": 16,
    "num_local_experts": 5,
    "num_hidden_layers": 4,
    "attention_chunk_size": LENGTH,
    "floor_scale": 7,
    "attn_scale": 0.3,
}
VARIANTS += [
    Variant(
        "llama4",
        "Llama4",
        {**LLAMA4, "rope_parameters": LLAMA3_ROPE},
        end_to_end=True,
    ),
    Variant(
        "llama4-dense-between",
        "Llama4",
        {
            **LLAMA4,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": False,
            "attention_bias": True,
            "no_rope_layer_interval": 2,
            "attention_chunk_size": None,
            "layer_types": ["full_attention"] * 4,
            **TIED,
        },
        end_to_end=True,
    ),
    Variant(
        "llama4-chunks",
        "Llama4",
        {**LLAMA4, "attention_chunk_size": 48, "max_position_embeddings": 128},
        max_model_len=128,
    ),
    Variant(
        "llama4-published",
        "Llama4",
        {
            **without(LLAMA4, "attention_chunk_size"),
            "moe_layers": [0, 3],
            "no_rope_layers": [],
            "attn_temperature_tuning": False,
            "rope_theta": 500.0,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 1.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 32,
                "rope_type": "llama3",
            },
        },
        raw=True,
    ),
    Variant(
        "llama4-seeing",
        "Llama4",
        {**LLAMA4, "no_rope_layers": [0, 1, 0, 1], "layer_types": ["full_attention"] * 4},
        whole={
            "vision_config": {
                **TOWER,
                "intermediate_size": 128,
                "vision_output_dim": 32,
                "projector_input_dim": 32,
                "projector_output_dim": 32,
            }
        },
    ),
]
STEP = {
    **EXPERTS,
    "n_routed_experts": 6,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "share_expert_dim": 40,
    "moe_router_scaling_factor": 3.0,
    "sliding_window": 6,
    "swiglu_limits": [0.0, 0.0, 0.4, 0.3],
    "swiglu_limits_shared": [None, 0, 0.5, 0.3],
}
#: As published: entries for layers behind the last one, and settings of layers with a window.
STEP_LISTS = {
    "num_nextn_predict_layers": 1,
    "layer_types": ["full_attention", *["sliding_attention"] * 3, "full_attention"],
    "moe_layers_enum": "1,2,3",
    "attention_other_setting": {"num_attention_heads": 8},
    "rope_theta": [5000.0, 100.0, 100.0, 100.0, 5000.0],
    "partial_rotary_factors": [0.5, 1.0, 1.0, 1.0, 0.5],
    "rope_scaling": LLAMA3_ROPE,
}
STEP_SEEING = {"whole": {"vision_config": {**TOWER, "layers": 1, "width": 32, "heads": 2}}}
VARIANTS += [
    Variant("step3", "Step3p7", {**STEP, **STEP_LISTS}, end_to_end=True, **STEP_SEEING),
    Variant("step3-published", "Step3p7", {**STEP, **STEP_LISTS}, raw=True, **STEP_SEEING),
    Variant(
        "step3-plain",
        "Step3p7",
        {**without(STEP, "swiglu_limits"), "swiglu_limits_shared": None},
        **STEP_SEEING,
    ),
]
VARIANTS += [
    Variant(
        "sarvam-moe",
        "SarvamMoE",
        {
            **EXPERTS,
            "num_experts": 6,
            "num_shared_experts": 1,
            "head_dim": 16,
            "use_qkv_bias": True,
            "rope_theta": 300.0,
        },
        raw=True,
        end_to_end=True,
    ),
    Variant(
        "sarvam-mla",
        "SarvamMLA",
        {
            **without(LATENT, "q_lora_rank"),
            **EXPERTS,
            "first_k_dense_replace": 1,
            "num_experts": 6,
            "num_shared_experts": 1,
            "head_dim": 40,
            "rope_scaling": {**without(YARN_ROPE, "rope_type"), "type": "deepseek_yarn"},
        },
        raw=True,
    ),
]
VARIANTS += [
    Variant(
        "lfm3-seeing",
        "Lfm3Vl",
        {"model_type": "lfm3", **without(LFM3, "vocab_size")},
        whole={"vision_config": TOWER},
    ),
    Variant(
        "minicpm-seeing-7",
        "MiniCPMV4_7",
        {"model_type": "qwen3_5_text", **DELTA, "head_dim": 16, **UNTIED},
        whole={"vision_config": TOWER},
    ),
    Variant(
        "hyperclovax-seeing",
        "HyperCLOVAXVisionV2",
        {"model_type": "hyperclovax", "logits_scaling": 0.7, **UNTIED},
        whole={"vision_config": {**QWEN_TOWER, "hidden_size": 32, "out_hidden_size": 64}},
    ),
    Variant(
        "qwen2-hearing",
        "Qwen2Audio",
        {"model_type": "qwen2", **UNTIED},
        whole={
            "audio_config": {
                "d_model": 32,
                "encoder_layers": 1,
                "encoder_attention_heads": 2,
                "encoder_ffn_dim": 32,
                "num_mel_bins": 8,
                "max_source_positions": 8,
            }
        },
    ),
    Variant(
        "ovis2",
        "Ovis2",
        {"model_type": "qwen2", **UNTIED},
        whole={
            "vision_config": {**TOWER, "vocab_size": 32},
            "hidden_size": 64,
            "vocab_size": VOCAB,
        },
    ),
    *(
        Variant(
            f"llama-in-{name}",
            name,
            {"model_type": "llama", **UNTIED},
            whole={"vision_config": TOWER},
        )
        for name in ("DeepseekVL", "LlavaNextVideo")
    ),
    Variant(
        "qwen2-in-VideoLlama3",
        "VideoLlama3",
        {"model_type": "qwen2", **UNTIED},
        whole={"vision_config": TOWER},
    ),
]
GLIMMER_SEEING = {
    "whole": {"vision_config": TOWER, "projector_hidden_size": 32, "out_hidden_size": 64}
}
VARIANTS += [
    Variant(
        "glimmer",
        "MuseGlimmer",
        {
            "num_hidden_layers": 4,
            "sliding_window": 6,
            "head_dim": 16,
            "qk_scale_factor": 1.5,
            "output_multiplier": 0.8,
        },
        end_to_end=True,
        **GLIMMER_SEEING,
    ),
    Variant(
        "glimmer-turned",
        "MuseGlimmer",
        {
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "layer_rope_theta": [10_000.0, 0, 10_000.0],
            "sliding_window": 5,
            "post_norm_eps": 0.1,
            "output_multiplier": 0.5,
            "head_dim": 32,
        },
        **GLIMMER_SEEING,
    ),
]
SPARK = {
    "num_hidden_layers": 4,
    "sliding_window": 6,
    "head_dim": 16,
    "qk_scale_factor": 1.5,
    "output_multiplier": 0.8,
    "moe_hidden_size": 48,
    "moe_intermediate_size": 40,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "residual_gate_temperature": 2.0,
}
SPARK_PARTS = {
    "vision_config": TOWER,
    "audio_config": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1], "out_hidden_size": 64},
    "projector_hidden_size": 32,
    "out_hidden_size": 64,
}
VARIANTS += [
    Variant("spark", "MuseSpark", SPARK, whole=SPARK_PARTS),
    Variant(
        "spark-dense-in-front",
        "MuseSpark",
        {
            **SPARK,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "num_experts_per_tok": 3,
            "routed_scaling_factor": 2.5,
            "post_norm_eps": 0.1,
            "residual_gate_temperature": 0.8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
        },
        whole=SPARK_PARTS,
    ),
]
MIMO = {**EXPERTS, "n_routed_experts": 6, "num_hidden_layers": 4, "head_dim": 24, "v_head_dim": 16}
VARIANTS += [
    Variant("mimo-v2", "MiMoV2Flash", {**MIMO, "sliding_window": 9}, end_to_end=True),
    Variant(
        "mimo-v2-published",
        "MiMoV2Flash",
        {
            **MIMO,
            "attention_bias": True,
            "attention_value_scale": None,
            "hybrid_layer_pattern": [0, 1, 1, 1],
            "moe_layer_freq": [0, 1, 1, 1],
            "layernorm_epsilon": 1e-5,
            "routed_scaling_factor": None,
            "rope_theta": 5_000_000,
            "swa_rope_theta": 10_000,
            "swa_num_key_value_heads": 4,
            "partial_rotary_factor": 0.334,
            "sliding_window": 8,
            "sliding_window_size": 8,
            "add_swa_attention_sink_bias": True,
            "add_full_attention_sink_bias": False,
        },
        raw=True,
    ),
]
XGLM = {
    "d_model": 64,
    "ffn_dim": 96,
    "num_layers": 3,
    "attention_heads": 4,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
VARIANTS += [
    Variant("diffllama", "DiffLlama", {"num_attention_heads": 8}),
    Variant(
        "diffllama-biases",
        "DiffLlama",
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "head_dim": 24,
            **TIED,
        },
    ),
    Variant("xglm", "XGLM", XGLM, end_to_end=True),
    Variant("xglm-untied", "XGLM", {**XGLM, "scale_embedding": False, **UNTIED}),
]
NTK_ALPHA = {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "mscale": 1.0}
VARIANTS += [
    Variant("hunyuan", "HunYuanDenseV1", {"head_dim": 24, **TIED}, end_to_end=True),
    Variant(
        "hunyuan-published",
        "HunYuanDenseV1",
        {
            "head_dim": 16,
            "attention_head_dim": 16,
            "attention_bias": True,
            "use_qk_norm": True,
            "use_cla": False,
            "rope_theta": 300.0,
            "rope_scaling": NTK_ALPHA,
        },
        raw=True,
    ),
    Variant(
        "hunyuan-moe",
        "HunYuanMoEV1",
        {"head_dim": 16, "num_experts": 6, "moe_topk": 2},
        end_to_end=True,
    ),
    Variant(
        "hunyuan-moe-published",
        "HunYuanMoEV1",
        {
            "head_dim": 16,
            "num_experts": 5,
            "moe_topk": [3, 3, 3],
            "moe_intermediate_size": [96, 96, 96],
            "num_shared_expert": [1, 1, 1],
            "use_mixed_mlp_moe": True,
            "rope_scaling": NTK_ALPHA,
            **TIED,
        },
        raw=True,
    ),
]
CORRECTED = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
}
VARIANTS += [
    Variant("hunyuan3", "HYV3", {**CORRECTED, "head_dim": 16, **TIED}, end_to_end=True),
    Variant(
        "hunyuan3-published",
        "HYV3",
        {
            **CORRECTED,
            "head_dim": 24,
            "num_shared_experts": 2,
            "router_scaling_factor": 1.3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "attention_bias": True,
            "mlp_bias": False,
        },
        raw=True,
    ),
    Variant(
        "exaone-moe",
        "ExaoneMoe",
        {
            **CORRECTED,
            **without(GROUPS, "n_routed_experts"),
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        end_to_end=True,
    ),
    Variant(
        "exaone-moe-defaults",
        "ExaoneMoe",
        {**CORRECTED, "head_dim": 24, "sliding_window_pattern": 2, "norm_topk_prob": False},
        raw=True,
    ),
    Variant(
        "cohere2-moe",
        "Cohere2Moe",
        {
            "num_experts": 6,
            "head_dim": 16,
            "sliding_window": 6,
            "sliding_window_pattern": 2,
            "num_shared_experts": 2,
            "logit_scale": 0.5,
        },
        end_to_end=True,
    ),
    Variant(
        "cohere2-moe-prefix",
        "Cohere2Moe",
        {
            "num_experts": 6,
            "head_dim": 24,
            "num_hidden_layers": 5,
            "sliding_window": 7,
            "sliding_window_pattern": 3,
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 56,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "num_shared_experts": 1,
            "shared_expert_combination_strategy": "sum",
            "attention_bias": True,
            "rms_norm_eps": 1e-6,
            "logit_scale": 1.0,
            **UNTIED,
        },
        raw=True,
    ),
    Variant(
        "cohere2-moe-still-prefix",
        "Cohere2Moe",
        {
            "num_experts": 5,
            "head_dim": 16,
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse", "dense"],
            "prefix_dense_sliding_window_pattern": 3,
            "expert_selection_fn": "sigmoid",
            "logit_scale": 2.0,
        },
    ),
]
MINIMAX3 = {
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "dense_intermediate_size": 80,
    "shared_intermediate_size": 40,
    "rotary_dim": 8,
    "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 0.5},
    "swiglu_limit": 1.5,
    "index_head_dim": 16,
    "index_n_heads": 2,
    "index_block_size": 16,
    "index_topk_blocks": 2,
    "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
}
VARIANTS += [
    Variant("minimax-m3", "MiniMaxM3VL", MINIMAX3, end_to_end=True),
    Variant(
        "minimax-m3-seeing",
        "MiniMaxM3Sparse",
        {"model_type": "minimax_m3_vl_text", **MINIMAX3, **UNTIED},
        whole={"vision_config": {**TOWER, "patch_size": 4, "image_size": 16}},
    ),
]
MINIMAX1 = {
    "num_local_experts": 5,
    "head_dim": 16,
    "num_hidden_layers": 4,
    "full_attn_alpha_factor": 3.5,
    "linear_attn_alpha_factor": 1.5,
    "linear_attn_beta_factor": 2.5,
    "mlp_alpha_factor": 0.5,
    "mlp_beta_factor": 1.5,
}
VARIANTS += [
    Variant("minimax-text", "MiniMax", {**MINIMAX1, "block_size": 8}, end_to_end=True),
]
DBRX = {
    "d_model": 64,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": LENGTH,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 5, "moe_top_k": 2},
}
VARIANTS += [
    Variant(
        "dbrx",
        "Dbrx",
        {**DBRX, "attn_config": {"kv_n_heads": 2, "clip_qkv": 1.5, "rope_theta": 500.0}},
        end_to_end=True,
    ),
    Variant(
        "dbrx-published",
        "Dbrx",
        {
            **DBRX,
            "num_hidden_layers": 2,
            "rope_parameters": None,
            "attn_config": {"kv_n_heads": 1, "rope_theta": 10_000.0, "clip_qkv": 8},
            "ffn_config": {**DBRX["ffn_config"], "moe_normalize_expert_weights": None},
        },
        raw=True,
    ),
]
DOTS3 = {
    **without(LATENT, "first_k_dense_replace"),
    **INDEX,
    **EXPERTS,
    **GROUPS,
    "head_dim": 24,
    "shared_experts_intermediate_size": 24,
    "sliding_window": 7,
    "layer_types": ["indexed_attention", "sliding_attention", "full_attention"],
    "swa_num_attention_heads": 8,
    "swa_num_key_value_heads": 8,
    "swa_q_lora_rank": 20,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 8,
}
VARIANTS += [
    Variant("dots3", "Dots3Note", {**DOTS3, "use_dsa": None}, end_to_end=True),
    Variant(
        "dots3-published",
        "Dots3Note",
        {
            **without(DOTS3, "shared_experts_intermediate_size"),
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "moe_shared_expert_intermediate_size": 24,
            "swa_rope_theta": 90.0,
            "rope_theta": 900.0,
            "first_k_dense_replace": 2,
            "attention_bias": True,
        },
        raw=True,
    ),
]
GLM5_NEXT = {
    **without(LATENT, "first_k_dense_replace"),
    **EXPERTS,
    "num_hidden_layers": 4,
    "qk_rope_head_dim": 0,
    "n_routed_experts": 6,
    "index_topk": 8,
    "index_kpool": 4,
    "index_head_dim": 12,
    "index_n_heads": 5,
    "linear_head_dim": 12,
    "linear_num_heads": 4,
    "swiglu_limit": 1.5,
    "hc_mult": 3,
}
HY4 = {
    **without(LATENT, "first_k_dense_replace"),
    **INDEX,
    **EXPERTS,
    "num_hidden_layers": 4,
    "n_routed_experts": 6,
    "hc_mult": 3,
    "swiglu_limit": 1.5,
}
VARIANTS += [
    Variant("hy4", "HYV4", HY4, end_to_end=True, undivided=True),
    Variant(
        "hy4-described",
        "HYV4",
        {
            **HY4,
            **GROUPS,
            "attention_bias": True,
            "hc_magnitude": 1.5,
            "hc_eps": 1e-3,
            "mlp_layer_types": ["sparse", "dense"] * 2,
            "indexer_types": ["full", "full", "shared", "full"],
            "rope_parameters": YARN_ROPE,
            **TIED,
        },
        raw=True,
        undivided=True,
    ),
]
QWEN4 = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 300.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
    },
    "layer_types": ["linear_attention", "indexed_attention"] * 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "hc_count": 3,
    "hc_lowrank": 12,
    "indexer_n_heads": 6,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,
    "indexer_compress_ratio": 8,
    "ple_layer_ids": [1, 3],
    "ple_embed_dim": 48,
    "ngram_size": 3,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 50,
    "split_ngram_parts": 2,
    "eos_token_id": 7,
}
VARIANTS += [
    Variant("qwen4-exp", "Qwen4Exp", QWEN4, end_to_end=True, undivided=True),
]
INKLING = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_head_dim": 16,
    "sliding_window_size": 7,
    "d_rel": 3,
    "rel_extent": 19,
    "local_layer_ids": [1],
    "log_scaling_n_floor": 9,
    "log_scaling_alpha": 0.4,
    "conv_kernel_size": 3,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "num_hidden_layers": 3,
    "route_scale": 2.5,
    "logits_mup_width_multiplier": 2.0,
}
VARIANTS += [
    Variant("inkling", "Inkling", INKLING, end_to_end=True),
    Variant(
        "inkling-seeing",
        "Inkling",
        INKLING,
        whole={
            "vision_config": {"hidden_size": 16, "patch_size": 4, "n_layers": 8},
            "audio_config": {"text_hidden_size": 64},
        },
    ),
    Variant(
        "inkling-plain",
        "Inkling",
        {
            **INKLING,
            "log_scaling_n_floor": None,
            "local_layer_ids": None,
            "mlp_layer_types": None,
            "unpadded_vocab_size": 251,
            "n_shared_experts": 1,
            "num_hidden_layers": 7,
        },
    ),
]
VARIANTS += [
    Variant(
        "ernie-seeing",
        "Ernie4_5_VLMoe",
        {
            "num_hidden_layers": 3,
            "head_dim": 16,
            "moe_intermediate_size": [40, 24],
            "moe_num_experts": 5,
            "moe_k": 2,
            "moe_num_shared_experts": 1,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "mrope_section": [3, 3, 2],
            },
            **UNTIED,
        },
        whole={"vision_config": {"depth": 1, "hidden_size": 32, "num_heads": 2, "in_channels": 3}},
    ),
]
VARIANTS += [
    Variant(
        "cosmos-edge",
        "Cosmos3Edge",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "mrope_section": [4, 2, 2],
            },
            **UNTIED,
        },
        whole={"vision_config": {**TOWER, "num_patches": 4}},
    ),
]
HY4_TOWER = {**TOWER, "out_hidden_size": 64, "num_channels": 1, "max_image_size": 8}
VARIANTS += [
    Variant(
        "hy4-seeing",
        "HYV4VL",
        {
            **HY4,
            "num_hidden_layers": 3,
            "rms_norm_eps": 1e-2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 300.0,
                "mrope_section": [1, 2, 1],
            },
            **UNTIED,
        },
        whole={"vision_config": HY4_TOWER},
        undivided=True,
    ),
]
GLM5_TOWER = {**QWEN_TOWER, "projection_intermediate_size": 32}
VARIANTS += [
    Variant(
        "glm5-next",
        "Glm5Next",
        {
            **GLM5_NEXT,
            "layer_types": ["linear_attention", "indexed_attention"] * 2,
            "mlp_layer_types": ["sparse", "sparse", "dense", "sparse"],
            **UNTIED,
        },
        whole={"vision_config": GLM5_TOWER},
        end_to_end=True,
        undivided=True,
    ),
    Variant(
        "glm5-next-published",
        "Glm5Next",
        {
            **without(without(GLM5_NEXT, "linear_head_dim"), "linear_num_heads"),
            "attention_bias": True,
            "hc_mult": 2,
            "index_kpool": 2,
            "index_topk": 10,
            "linear_attn_config": {
                "head_dim": 8,
                "num_heads": 4,
                "short_conv_kernel_size": 3,
                "gate_lower_bound": None,
                "safe_gate": False,
            },
            "n_group": 3,
            "topk_group": 2,
            "norm_topk_prob": False,
            **UNTIED,
        },
        whole={"vision_config": GLM5_TOWER},
        raw=True,
        undivided=True,
    ),
]
AXK2 = {
    **without(LATENT, "first_k_dense_replace"),
    **INDEX,
    **EXPERTS,
    "n_routed_experts": 8,
    "gated_norm_rank": 6,
}
VARIANTS += [
    Variant("axk2", "AXK2", {**AXK2, "n_group": 4, "topk_group": 2}, end_to_end=True),
    Variant(
        "axk2-light",
        "AXK2",
        {**AXK2, "n_shared_experts": 2, "mlp_layer_types": ["sparse", "dense", "sparse"]},
        raw=True,
    ),
]
LLAMA3_32 = {**LLAMA3_ROPE, "original_max_position_embeddings": 16}
VARIANTS += [
    Variant(
        "mllama",
        "Mllama",
        {"cross_attention_layers": [1, 3], "num_hidden_layers": 5, "rope_parameters": LLAMA3_32},
        end_to_end=True,
    ),
    Variant(
        "mllama-seeing",
        "Mllama",
        {"cross_attention_layers": [1], "rope_parameters": LLAMA3_32, **UNTIED},
        whole={
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
                "vision_output_dim": 64,
                "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1]],
                "max_num_tiles": 1,
            }
        },
    ),
    Variant("apertus1p5", "Apertus1p5", {"vocab_size": 300, "output_vocab_size": VOCAB}, raw=True),
    Variant("apertus1p5-whole", "Apertus1p5", {"rope_parameters": LLAMA3_32, **TIED}),
    Variant(
        "phi4-multimodal",
        "Phi4Multimodal",
        {
            "rope_parameters": {
                **longrope(6),
                **LONGROPE,
                "partial_rotary_factor": 0.75,
                "rope_theta": 500.0,
            },
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "crop_size": 28,
            },
            "audio_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_blocks": 1,
                "num_attention_heads": 2,
                "ext_pw_out_channel": 16,
                "nemo_conv_channels": 8,
            },
        },
        32,
        end_to_end=True,
    ),
]
ZAMBA = {
    "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid"],
    "mamba_d_state": 8,
    "n_mamba_heads": 8,
    "num_key_value_heads": 4,
    "adapter_rank": 4,
}
VARIANTS += [
    Variant(
        "zamba2",
        "Zamba2",
        {
            **ZAMBA,
            # With adapters further layers make more of rounding than a comparison can bear.
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "mamba", "hybrid"],
            "mamba_ngroups": 2,
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
        },
        raw=True,
        undivided=True,
    ),
    Variant("zamba2-two-blocks", "Zamba2", {**ZAMBA, "num_mem_blocks": 2}, undivided=True),
]
ZAMBA1 = {"mamba_d_state": 8, "num_key_value_heads": 4, "mamba_dt_rank": 5}
VARIANTS += [
    Variant(
        "zamba",
        "Zamba",
        {**ZAMBA1, "num_hidden_layers": 8},
        undivided=True,
        end_to_end=True,
    ),
    Variant(
        "zamba-one-head",
        "Zamba",
        {
            **ZAMBA1,
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "mamba", "hybrid"],
            "n_mamba_heads": 1,
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "mamba_dt_rank": "auto",
            "attention_head_dim": 16,
        },
        undivided=True,
    ),
]
VARIANTS += [Variant("bitnet", "BitNet", {"attention_bias": True, **TIED}, end_to_end=True)]
VARIANTS += [
    Variant(
        "modernbert",
        "ModernBertDecoder",
        {"local_attention": 14, "cls_token_id": 1, "sep_token_id": 2},
        end_to_end=True,
    ),
    Variant(
        "modernbert-biases",
        "ModernBertDecoder",
        {
            **{f"{part}_bias": True for part in ("attention", "mlp", "norm", "classifier")},
            "decoder_bias": False,
            "global_attn_every_n_layers": 2,
            "global_rope_theta": 900.0,
            "local_attention": 11,
            **UNTIED,
        },
        raw=True,
    ),
]
MOLMO_PARTS = {
    "vision_config": {**TOWER, "num_key_value_heads": 2, "head_dim": 16, "image_size": [28, 28]},
    "adapter_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "text_hidden_size": 64,
        "vision_feature_layer": [-1],
    },
}
#: transformers cuts the table in halves when it saves one.
MOLMO = {"head_dim": 16, "additional_vocab_size": VOCAB}
VARIANTS += [
    Variant("molmo2", "Molmo2", MOLMO, whole=MOLMO_PARTS),
    Variant(
        "molmo2-olmo",
        "Molmo2",
        {
            **MOLMO,
            "qk_norm_type": "olmo",
            "norm_after": True,
            "qkv_bias": True,
            "rope_parameters": YARN_ROPE,
            "rope_scaling_layers": [0, 2],
        },
        whole=MOLMO_PARTS,
    ),
]
#: Models that run as transformers' code.
VARIANTS += [
    Variant("transformers-llama", "Llama", end_to_end=True, impl="transformers"),
    Variant(
        "transformers-gemma2",
        "Gemma2",
        {
            "head_dim": 16,
            "query_pre_attn_scalar": 24,
            "sliding_window": 6,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        impl="transformers",
    ),
    Variant(
        "transformers-olmoe",
        "Olmoe",
        {"num_experts": 6, "num_experts_per_tok": 2},
        end_to_end=True,
        impl="transformers",
    ),
    Variant(
        "flex-olmo",
        "FlexOlmo",
        {"num_experts": 5, "num_experts_per_tok": 2},
        impl="transformers",
    ),
    Variant("helium", "Helium", {"head_dim": 16}, end_to_end=True, impl="transformers"),
    Variant(
        "jetmoe",
        "JetMoe",
        {"kv_channels": 16, "num_local_experts": 5, "num_experts_per_tok": 2},
        impl="transformers",
    ),
    Variant(
        "transformers-granite",
        "Granite",
        {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 2.0},
        impl="transformers",
    ),
    Variant("apertus", "Apertus", end_to_end=True, impl="transformers"),
    Variant(
        "persimmon", "Persimmon", {"num_key_value_heads": 4}, end_to_end=True, impl="transformers"
    ),
    Variant("olmo", "Olmo", {"clip_qkv": 2.0, **TIED}, end_to_end=True, impl="transformers"),
    Variant("transformers-opt", "OPT", {"ffn_dim": 96}, impl="transformers"),
    Variant("transformers-phi", "Phi", TIED, impl="transformers"),  # a bias of a tied matrix
    Variant(
        "cohere-compass",
        "CohereCompass",
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "sliding_window": 7,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": None,
            },
        },
        whole={"vision_config": TOWER},
        impl="transformers",
    ),
    Variant(
        "deepseek-ocr2",
        "DeepseekOcr2",
        {
            **EXPERTS,
            "n_routed_experts": 5,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.5,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
        },
        whole={
            "vision_config": {
                "sam_config": {
                    **TOWER,
                    "patch_size": 7,
                    "output_channels": 16,
                    "mlp_dim": 32,
                    "global_attn_indexes": [0],
                    "downsample_channels": [16, 64],
                },
                "encoder_config": {**TOWER, "hidden_size": 64, "vocab_size": 8},
            }
        },
        impl="transformers",
    ),
]
LARGE4 = {
    **without(without(LATENT, "q_lora_rank"), "first_k_dense_replace"),
    **INDEX,
    **EXPERTS,
    "n_routed_experts": 8,
    "rope_parameters": {**YARN_ROPE, "attention_factor": 1.0},
}
PIXTRAL = {"whole": {"vision_config": {"model_type": "pixtral", **TOWER}}}
VARIANTS += [
    Variant(
        "large4",
        "MistralLarge4",
        {
            **LARGE4,
            "num_hidden_layers": 6,
            "n_group": 4,
            "topk_group": 2,
            "no_rope_layers": [1, 1, 0, 0, 1, 1],
            "kv_source_layers": [0, 0, 2, 2, 4, 4],
            "indexer_types": ["full", "full", "full", "shared", "full", "shared"],
        },
        end_to_end=True,
        **PIXTRAL,
    ),
    Variant(
        "large4-apart",
        "MistralLarge4",
        {
            **LARGE4,
            "num_hidden_layers": 5,
            "index_topk": 100,
            "no_rope_layers": [1, 0, 1, 0, 1],
            "kv_source_layers": [0, 1, 0, 1, 4],
            "mlp_layer_types": ["sparse", "dense", "sparse", "dense", "sparse"],
            "attention_bias": True,
            "rms_norm_eps": 0.1,
            "routed_scaling_factor": 2.5,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {**YARN_ROPE, "mscale": 0.9, "mscale_all_dim": 0.7},
        },
        **PIXTRAL,
    ),
    Variant(
        "large4-plain",
        "MistralLarge4",
        {
            **LARGE4,
            "num_hidden_layers": 4,
            "first_k_dense_replace": 4,
            "index_topk_freq": 2,
            "no_rope_layer_interval": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
        raw=True,
        **PIXTRAL,
    ),
]
#: On which platforms engines run. With references an engine differs by the kinds of its caches
#: alone, so these variants, one for each set of kinds, are enough: `test_logits` shows that
#: references compute all of them.
PLATFORMS = ("reference", "cpu", "cuda")
#: Where engines run whose platform does not matter to a test.
HERE = "cuda" if isinstance(CudaPlatform().probe(), Available) else "cpu"
PLAIN = ("llama-tied-gqa", "gemma3", "gpt-oss", "deepseek-v3", "falcon-h1", "qwen3-next")
PLAIN += ("mamba2", "glm-moe-dsa", "deepseek-v4", "transformers-llama")


def first_of_others() -> list[Variant]:
    """Return a variant of each class that no variant runs end to end."""
    done = {describe(v)[0] for v in VARIANTS if v.end_to_end and v.impl == "auto"}
    others = {describe(v)[0]: v for v in reversed(VARIANTS) if v.impl == "auto"}
    return [v for name, v in others.items() if name not in done]


def beside_others() -> set[str]:
    """Name the variants that differ from another one of their class in values alone, but for those
    that run end to end."""
    first = {describe(v)[0]: v.name for v in reversed(VARIANTS) if v.impl == "auto"}
    return {v.name for v in VARIANTS if not v.end_to_end} - {*first.values()}


#: Families whose norms add 1 to their weights.
OFFSET = (
    "RecurrentGemma",
    "Gemma",
    "VaultGemma",
    "Gemma2",
    "Gemma3",
    "Nemotron",
    "Qwen3Next",
    "Qwen3_5",
    "Qwen3_5Moe",
    "Qwen4Exp",
    "MiniMaxM3VL",
    "MiniMaxM3Sparse",
    "Step3p7",
)
#: What other vectors lie about, by how their names end: rates of rotation, and factors on q that
#: would make attention so sharp that rounding shows.
CENTERS = {"rotary_emb.alpha": 0.0, "softmax_scaling.scale": 0.1, "softmax_scaling.bias": 1.0}
#: Families whose class for texts has another name than theirs and ForCausalLM.
ARCHITECTURE = {
    "GPT2": "GPT2LMHeadModel",
    "Apertus1p5": "Apertus1p5TextForCausalLM",
    "Glm5Next": "Glm5NextTextModel",
    "Ernie4_5_VLMoe": "Ernie4_5_VLMoeTextModel",
}


def _transposed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    return name, tensor.mT.contiguous() if ".mlp.experts." in name else tensor


def _as_layers(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    return name.replace("language_model.model.blocks.", "language_model.model.layers."), tensor


#: Names and matrices as families are published, which transformers writes otherwise.
PUBLISHED = {"Qwen3VLMoe": _transposed, "Kimi_K25": _as_layers}
#: Variants whose slopes transformers adds twice in its plain attention, and once in this one.
BY_SDPA = {"falcon-rw"}
#: Classes that compute families, which have no code of their own.
COMPUTED = dict.fromkeys(("InternLM3", "IQuestCoder"), "LlamaForCausalLM")
COMPUTED |= {"SarvamMLA": "DeepseekV3ForCausalLM", "SarvamMoE": "Glm4MoeForCausalLM"}
#: Phi-3 keeps the trained length outside the rope parameters, where it overrules them.
TRAINED = {"original_max_position_embeddings": 32}
OUTSIDE = {"Phi3": TRAINED, "Phi4Multimodal": TRAINED}
CONFIG_CLASSES = {
    "Gemma3": "Gemma3TextConfig",
    "Gemma3n": "Gemma3nTextConfig",
    "Gemma4": "Gemma4TextConfig",
    "Gemma4Unified": "Gemma4UnifiedTextConfig",
    "Qwen3_5": "Qwen3_5TextConfig",
    "Qwen3_5Moe": "Qwen3_5MoeTextConfig",
    "Qwen4Exp": "Qwen4ExpTextConfig",
    "Llama4": "Llama4TextConfig",
    "MiniMaxM3VL": "MiniMaxM3VLTextConfig",
    "Dots3Note": "Dots3NoteTextConfig",
    "Inkling": "InklingTextConfig",
    "Mllama": "MllamaTextConfig",
    "Apertus1p5": "Apertus1p5TextConfig",
}
#: Those of whole models that have other names than theirs.
WHOLE_CLASSES = {"MiniMaxM3Sparse": "MiniMaxM3VLConfig"}


def architecture(family: str) -> str:
    """Return the name of a family's class for texts."""
    return ARCHITECTURE.get(family, f"{family}ForCausalLM")


@dataclass(frozen=True)
class Checkpoint:
    """A saved model directory, and the transformers model that was saved."""

    path: Path
    model: transformers.PreTrainedModel
    impl: str = "auto"

    def logits(self, tokens: Sequence[int], length: int = 0) -> Tensor:
        """Return transformers' logits [len(tokens), vocab], as part of a text of this length."""
        padded = [*tokens, *([3] * (length - len(tokens)))]
        with torch.inference_mode():
            out = self.model(torch.tensor([padded]), use_cache=False).logits
        return out[0, : len(tokens)].float()

    def assert_greedy(self, prompt: Sequence[int], written: Sequence[int], length: int = 0) -> None:
        """Each token must be the likeliest behind those before it, or as good as that.

        One pass over the whole text shows it; what follows an unstable choice is not judged.
        """
        logits = self.logits([*prompt, *written[:-1]], length)[len(prompt) - 1 :]
        gaps = logits.amax(-1) - logits.gather(-1, torch.tensor(written)[:, None])[:, 0]
        wrong = (~(gaps <= TIE * logits.abs().amax(-1))).nonzero().flatten().tolist()
        if not wrong:
            return
        first = wrong[0]
        before = [*prompt, *written[:first]]
        if self.unstable(before) == len(before):
            off = float(gaps[first] / logits[first].abs().max())
            # Both tokens' logits may be off.
            assert off <= 2 * self.rounding(before)[-1], f"token {first} of {prompt}: {written}"

    def unstable(self, tokens: Sequence[int]) -> int:
        """Return the first position at which rounding may change a choice, or the end.

        Choices are those of experts, and of tokens that sparse attention reads. Nothing that comes
        at or behind it need agree with what is computed in another order.
        """
        found: list[Tensor] = []

        def judge(
            router: torch.nn.Module,
            inputs: tuple[Tensor, ...],
            named: dict[str, Any],
            output: Any,
        ) -> None:
            ids, noise = _chosen(output), NEAR * torch.randn_like(inputs[0])
            for way in (noise, -noise):  # one of which closes a gap, where the other widens it
                near = inputs[0] * (1 + way)
                others = type(router).forward(router, near, *inputs[1:], **named)
                unlike = (ids != _chosen(others)).any(-1).view(-1)
                for one, other in zip(output, others, strict=True):
                    if one.is_floating_point():  # Phi's weights leave out scores below a share
                        unlike |= ((one - other).abs() > JUMP).view(len(unlike), -1).any(-1)
                found.append(unlike)

        def judge_index(
            module: torch.nn.Module, inputs: tuple[Tensor, ...], named: Any, output: Any
        ) -> None:
            scores, top_k = index_scores(module, inputs, named)
            # More than are seen are never chosen from; many scores are equal, as they are 0.
            at = scores.sort(-1, descending=True).values
            at = torch.nn.functional.pad(at, (0, 1), value=-torch.inf)
            gap = (at[..., top_k - 1] - at[..., top_k]).nan_to_num(torch.inf)
            largest = at.masked_fill(at.isinf(), 0).abs().amax(-1)
            near = gap <= NEAR * largest  # of each head, where each chooses for itself
            found.append(near.view(-1, near.shape[-1]).any(0))

        hooks = []
        for module in self.model.modules():
            kind = type(module).__name__.lower()
            if kind.endswith("router"):
                hooks.append(module.register_forward_hook(judge, with_kwargs=True))
            if kind.endswith("indexer"):
                hooks.append(module.register_forward_hook(judge_index, with_kwargs=True))
        self.logits(tokens)
        for hook in hooks:
            hook.remove()
        near = torch.stack(found).any(0).nonzero() if found else []
        return int(near[0]) if len(near) else len(tokens)

    def rounding(self, tokens: Sequence[int]) -> Tensor:
        """Return the relative error [len(tokens)] that rounding alone may bring to each position.

        A norm of values that nearly cancel makes much of the last bit of each. Weights that
        differ by a few such bits show the positions that do, by ten times and more. At most 1 % is
        put down to that. Where they show 10 %, neither this position nor those behind it tell
        anything: any error may come there.
        """
        before = self.logits(tokens)
        kept = [p.detach().clone() for p in self.model.parameters()]
        worst = torch.zeros(len(tokens))
        with torch.no_grad():
            for _ in range(4):
                for parameter, value in zip(self.model.parameters(), kept, strict=True):
                    parameter.copy_(value * (1 + ROUNDING * torch.randn_like(value)))
                change = (self.logits(tokens) - before).abs().amax(-1) / before.abs().amax(-1)
                worst = torch.maximum(worst, change)
            for parameter, value in zip(self.model.parameters(), kept, strict=True):
                parameter.copy_(value)
        error = 10 * worst.cummax(0).values
        return error.clamp(max=0.01).masked_fill(error > 0.1, torch.inf)


def _chosen(output: tuple[Tensor, ...]) -> Tensor:
    """Return the experts that a router has chosen, by number; or whether, of those it scores."""
    ids = next((t for t in output if not t.is_floating_point()), None)
    return output[0] > 0 if ids is None else ids.sort(-1).values


def describe(variant: Variant) -> tuple[str, str, dict[str, Any]]:
    """Return the names of the classes of a model and of its configuration, and its values."""
    values = {**SIZES, **OUTSIDE.get(variant.family, {}), **variant.values}
    if variant.whole is not None:
        family, tied = variant.family, {key: values[key] for key in TIED if key in values}
        whole = {**variant.whole, **tied, "text_config": values}
        named = WHOLE_CLASSES.get(family, f"{family}Config")
        return f"{family}ForConditionalGeneration", named, whole
    config = CONFIG_CLASSES.get(variant.family, f"{variant.family}Config")
    return architecture(variant.family), config, values


def index_scores(
    module: torch.nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any]
) -> tuple[Tensor, int]:
    """Return what an indexer chooses by [tokens, choices], -inf for what a query does not see, and
    how many it chooses; of heads that choose for themselves [heads, tokens, choices]."""
    found: list[tuple[Tensor, int]] = []
    plain = Tensor.topk

    def topk(scores: Tensor, k: int, *arguments: Any, **named: Any) -> Any:
        found.append(((scores if scores.dim() == 1 else scores[0]).float(), k))
        return plain(scores, k, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "topk", topk)
        takes = len(inspect.signature(module.forward).parameters)
        rest = [None] * (takes - len(inputs) - len(named))
        type(module).forward(module, *inputs, *rest, **named)
    if not found:  # no query sees anything to choose
        return torch.full((inputs[0].shape[1], 1), -torch.inf), 1
    scores, k = found[0]
    if scores.dim() == 1:  # one call for each query that sees something to choose
        count, width = inputs[0].shape[1], max(len(own) for own, _ in found)
        scores, k = torch.full((count, width), -torch.inf), max(k for _, k in found)
        for row, (own, _) in enumerate(found, count - len(found)):
            scores[row, : len(own)] = own
    return scores.masked_fill(scores < HIDDEN, -torch.inf), k


def save_tiny(variant: Variant, path: Path, seed: int) -> Checkpoint:
    """Make a random model whose attention and logits are far from uniform, and save it."""
    class_name, config_name, values = describe(variant)
    config_class = getattr(transformers, config_name)
    attention = "sdpa" if variant.name in BY_SDPA else "eager"
    config = config_class(**copy.deepcopy(values), attn_implementation=attention)
    torch.manual_seed(seed)
    computed = COMPUTED.get(variant.family, class_name)
    model = getattr(transformers, computed)(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                center = 0.0 if "bias" in name or variant.family in OFFSET else 1.0
                center = next((CENTERS[end] for end in CENTERS if name.endswith(end)), center)
                weight.normal_(center, 0.3)
            else:
                weight.normal_(0.0, 1.5 * weight.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if "correction" in name or name.endswith(("expert_bias", "balancing_biases")):
                buffer.normal_(0.0, 0.2)
            if name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.2)
            if name.endswith("tid2eid"):
                buffer.copy_(torch.rand(len(buffer), config.n_routed_experts).argsort()[:, :2])
    model.save_pretrained(path)
    if variant.family in PUBLISHED:
        file, change = path / "model.safetensors", PUBLISHED[variant.family]
        save_file(dict(change(*item) for item in load_file(file).items()), file)
    if class_name == "Llama4ForConditionalGeneration":  # which needs images to run
        model = model.language_model
    if variant.family in CANCELS:
        model = model.double()
    if variant.raw:
        if variant.flat:
            values = {**variant.values, **(variant.whole or {})}
        values["architectures"] = [class_name]
        (path / "config.json").write_text(json.dumps(values))
    return Checkpoint(path, model, variant.impl)


#: transformers takes the square root of 1 - a**2, of which float32 keeps no digit where a is
#: nearly 1. Their references are computed in float64.
CANCELS = {"RecurrentGemma"}
#: transformers 5.17 computes these families otherwise than 5.24, with which the references agree.
#: No release between them was tried.
RECENT = {"Bamba", "Gemma3n", "GptOss", "GraniteMoeHybrid", "Mamba2", "MiniMaxM2"}
RECENT |= {"MistralLarge4"}  # which they lack
#: It fails where the heads of this one are turned in part.
RECENT |= {"GPTNeoXJapanese"}
#: Of other families, those that earlier releases refuse.
RECENT |= {"llama4-dense-between"}
#: Earlier releases do not have these, or warn when they import them.
RECENT |= {"InternLM3", "IQuestCoder", "GPTBigCode"}
#: And those that it lacks.
RECENT |= {"MiniMaxM3VL", "MiniMaxM3Sparse", "Dots3Note", "AXK2"}
RECENT |= {"Apertus1p5", "Zaya", "MuseSpark"}
RECENT |= {"AXK1", "Kolibri1", "BailingHybrid", "DeepseekV4", "Flint", "Laguna", "Lfm3"}
RECENT |= {"Glm5Next", "HYV4", "HYV4VL", "Qwen4Exp", "Ernie4_5_VLMoe", "Cosmos3Edge"}
RECENT |= {"Inkling"}
RECENT |= {"LaraMini", "SarvamMoE", "SarvamMLA", "HyperCLOVAXVisionV2", "MiniCPMV4_7", "Lfm3Vl"}
RECENT |= {"CohereCompass", "DeepseekOcr2", "Molmo2"}
#: One prefix too many is in the names that earlier releases write.
RECENT |= {"qwen2-hearing"}
OLDEST = "5.24"


def skip_where_older(variant: Variant) -> None:
    """Skip a test of what the installed transformers lacks or gets wrong."""
    recent = {variant.family, variant.name} & RECENT
    if recent and Version(transformers.__version__) < Version(OLDEST):
        pytest.skip(f"{variant.family} needs transformers {OLDEST} or later")


class Checkpoints:
    """Checkpoints by variant, each made once a session from a fresh seed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._made: dict[str, Checkpoint] = {}
        self.seed = secrets.randbits(32)

    def get(self, variant: Variant) -> Checkpoint:
        skip_where_older(variant)
        print(f"checkpoints are drawn from seed {self.seed}")
        if variant.name not in self._made:
            path = self._root / variant.name
            self._made[variant.name] = save_tiny(variant, path, self.seed)
        return self._made[variant.name]


class Stepper:
    """Hotshoe's model on plain references, fed token by token as a scheduler would.

    Blocks are handed out in random order and the cache starts as NaN, so that a read of a wrong
    block or of an unwritten slot shows.
    """

    def __init__(
        self,
        path: Path,
        max_model_len: int,
        block_size: int = 4,
        *,
        impl: str = "auto",
        load: bool = True,
        **parallel: Any,
    ) -> None:
        config = ModelConfig.load(path)
        self.ctx = BuildContext(
            Selector(SLOTS, [], CPU), "float32", "float32", block_size, max_model_len, **parallel
        )
        own = impl == "auto"
        build = resolve_lazy(ARCHITECTURES[config.architecture] if own else IMPLEMENTATIONS[impl])
        self.model = build(config, self.ctx)
        if not load:
            return
        load_weights(self.ctx.weights, path, "safetensors", torch.float32, 0)
        self._free = random.sample(range(BLOCKS), BLOCKS)
        for layer in self.ctx.cache_layers:
            layer.allocate_cache(BLOCKS)
            for part in layer.cache if isinstance(layer.cache, tuple) else (layer.cache,):
                part.fill_(float("nan"))
        groups = [
            CacheGroup(layer.cache_spec, (i,)) for i, layer in enumerate(self.ctx.cache_layers)
        ]
        self._plans = assign_views(self.ctx.cache_layers, CacheLayout(tuple(groups), ()))
        self._blocks: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        #: Layers leave their results where the one before did, as in a step recorded in pieces.
        self._pieces = Pieces(None, BLOCKS * block_size)

    def step(self, scheduled: dict[int, Sequence[int]]) -> dict[int, Tensor]:
        """Feed each sequence its next tokens; return the logits of every one of them."""
        logits = self.model.head(self.forward(scheduled), "generate")
        parts = logits.split([len(tokens) for tokens in scheduled.values()])
        return dict(zip(scheduled, parts, strict=True))

    @torch.inference_mode()
    def forward(self, scheduled: dict[int, Sequence[int]], hidden: Tensor | None = None) -> Tensor:
        """Return every token's hidden states, from those of the stage before if there is one."""
        size = self.ctx.block_size
        ids, positions, slots, starts = [], [], [], [0]
        for sequence, tokens in scheduled.items():
            blocks = self._blocks.setdefault(sequence, [])
            begin = self._lengths.get(sequence, 0)
            end = self._lengths[sequence] = begin + len(tokens)
            while len(blocks) * size < end:
                blocks.append(self._free.pop())
            ids += tokens
            positions += range(begin, end)
            slots += [blocks[p // size] * size + p % size for p in range(begin, end)]
            starts.append(len(ids))
        lengths = [self._lengths[sequence] for sequence in scheduled]
        longest = max(len(tokens) for tokens in scheduled.values())
        shape = StepShape(len(scheduled), _ints(starts), _ints(lengths), longest, max(lengths))
        if longest > 1:  # or it may be a recorded one
            shape.host_lens = ([len(tokens) for tokens in scheduled.values()], lengths)
        views = []
        for plan in self._plans:
            view = CacheView(self._block_table(list(scheduled)), _ints(slots))
            view.prepared = plan.prepare(shape, view)
            views.append(view)
        self._pieces.shape, self._pieces.views = shape, views
        between = partial(self._pieces._attention, call) if longest > 1 else None
        self.batch = batch = ForwardBatch(_ints(positions), shape, views, between=between)
        return self.model.forward(self.model.embed(_ints(ids)) if hidden is None else hidden, batch)

    def _block_table(self, sequences: list[int]) -> Tensor:
        """Return the table as a view with a row stride, its unused entries out of range."""
        width = max(len(self._blocks[s]) for s in sequences)
        table = torch.full((len(sequences), width + 3), 1 << 20, dtype=torch.int32)
        for row, sequence in enumerate(sequences):
            blocks = self._blocks[sequence]
            table[row, : len(blocks)] = _ints(blocks)
        return table[:, :width]


def _ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test for the variants that the name of its argument means.

    `described_variant`: those that no library's code computes; `cut_variant`: the same, of which
    those beside others of their class are slow; `shared_variant`: the same, of which those that are
    spelled otherwise are slow; `engine_variant`: those with `end_to_end`, and one of each class
    that has none; `divided_variant`: those with `end_to_end` that ranks share;
    `int8_variant` and `bfloat16_variant`: those in which rounding chooses no other experts, every
    second one of them slow in one test, the others in the other.
    Engines (`make_llm`) run on every platform, with references the variants in PLAIN alone.
    """
    engines = "make_llm" in metafunc.fixturenames
    described = [v for v in VARIANTS if v.impl == "auto"]
    rounded = [v for v in VARIANTS if v.end_to_end and not v.chooses]
    turns = [{v.name for v in rounded[turn::2]} - {*PLAIN} for turn in range(2)]
    nothing = set[str]()
    for name, wanted, slow in (
        ("variant", VARIANTS, nothing),
        ("described_variant", described, nothing),
        ("cut_variant", described, beside_others()),
        ("shared_variant", described, beside_others() & {v.name for v in VARIANTS if v.raw}),
        ("engine_variant", [v for v in VARIANTS if v.end_to_end] + first_of_others(), nothing),
        ("divided_variant", [v for v in described if v.end_to_end], nothing),
        ("int8_variant", rounded, turns[0]),
        ("bfloat16_variant", rounded, turns[1]),
    ):
        if name not in metafunc.fixturenames:
            continue
        marks = {v.name: [pytest.mark.slow] * (v.name in slow) for v in wanted}
        if not engines:
            one = [pytest.param(v, id=v.name, marks=marks[v.name]) for v in wanted]
            metafunc.parametrize(name, one)
            continue
        runs = [
            pytest.param(platform, v, id=f"{platform}-{v.name}", marks=marks[v.name])
            for platform in PLATFORMS
            for v in wanted
            if platform != "reference" or v.name in PLAIN
        ]
        metafunc.parametrize(["make_llm", name], runs, indirect=["make_llm"])
        engines = False
    if engines:
        metafunc.parametrize("make_llm", PLATFORMS, indirect=True)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small run faster on one thread, by much where other work shares the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def build_family() -> Callable[..., BuildContext]:
    """Build an architecture from bare configuration values; no weight is made.

    Sizes are small ones, or those of the family's defaults with `sized=False`.
    """

    def build(
        family: str,
        *,
        dtype: str = "float32",
        sized: bool = True,
        max_model_len: int = 16,
        **values: Any,
    ):
        given = {**BARE, **values} if sized else values
        name = architecture(family)
        config = ModelConfig(Path("model"), name, given, dtype, 16, ())
        ctx = BuildContext(Selector(SLOTS, [], CPU), dtype, dtype, 4, max_model_len)
        resolve_lazy(ARCHITECTURES[name])(config, ctx)
        return ctx

    return build


@pytest.fixture(scope="session")
def variants() -> dict[str, Variant]:
    return {variant.name: variant for variant in VARIANTS}


@pytest.fixture(scope="session")
def stepper_class() -> type[Stepper]:
    return Stepper
