"""The first mixtures of DeepSeek and Ling: checkpoints of transformers' families, written so."""

import re

import pytest
import torch
from tests.plugins.models.conftest import EXPERTS, GROUPS, UNTIED
from tests.plugins.models.test_published import (
    DIM,
    USUAL,
    Family,
    Tensors,
    check,
    renamed,
    stacked,
)

from hotshoe.errors import CheckpointError


def plain_shared(tensors: Tensors) -> Tensors:
    """Turn Qwen 2's shared experts, whose gates are half open, into ones without a gate."""
    found = {}
    for name, tensor in tensors.items():
        if name.endswith("shared_expert.down_proj.weight"):
            tensor = tensor / 2
        if "shared_expert_gate" not in name and not re.search("_proj.bias$", name):
            found[name.replace("shared_expert.", "shared_experts.")] = tensor
    return found


def seeing(tensors: Tensors) -> Tensors:
    """Add what DeepSeek-OCR sees with."""
    parts = ("sam_model.neck.0.weight", "vision_model.x.weight", "projector.layers.bias")
    parts += ("image_newline", "view_seperator")
    return plain_shared(tensors) | {f"model.{part}": torch.ones(3) for part in parts}


LING = (
    ("model.embed_tokens", "model.word_embeddings"),
    ("self_attn.o_proj", "attention.dense"),
    ("self_attn.q_norm", "attention.query_layernorm"),
    ("self_attn.k_norm", "attention.key_layernorm"),
    ("gate.e_score_correction_bias", "gate.expert_bias"),
)


def bailing(tensors: Tensors) -> Tensors:
    return renamed(stacked(plain_shared(tensors), "attention.query_key_value"), *LING)


def bailing_v2(tensors: Tensors) -> Tensors:
    return renamed(stacked(tensors, "attention.query_key_value"), *LING)


MIXTURE = {
    **EXPERTS,
    "num_experts": 4,
    "shared_expert_intermediate_size": 80,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
    **UNTIED,
}
SHARED = {"moe_intermediate_size": 40, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
#: As DeepSeek-OCR has it, whose text part says nothing of its family.
OCR = {
    **USUAL,
    **SHARED,
    "architectures": ["DeepseekV2ForCausalLM"],
    "use_mla": False,
    "kv_lora_rank": None,
    "q_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "v_head_dim": 0,
    "topk_method": "greedy",
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
}
FAMILIES: dict[str, Family] = {
    "DeepseekOCRForCausalLM": (
        "Qwen2Moe",
        MIXTURE,
        {"model_type": "deepseek_vl_v2", "language_config": OCR, "vision_config": {}, **OCR},
        seeing,
    ),
    "DeepseekForCausalLM": (
        "Qwen2Moe",
        MIXTURE,
        {**USUAL, **SHARED, "n_routed_experts": 4, "n_shared_experts": 2},
        plain_shared,
    ),
    "BailingMoeForCausalLM": (
        "Qwen2Moe",
        {**MIXTURE, "norm_topk_prob": True},
        {**USUAL, **SHARED, "num_experts": 4, "num_shared_experts": 2, "use_bias": False},
        bailing,
    ),
    "BailingMoeV2ForCausalLM": (
        "Glm4Moe",
        {
            **EXPERTS,
            **GROUPS,
            "n_shared_experts": 1,
            "use_qk_norm": True,
            "head_dim": DIM,
            "first_k_dense_replace": 1,
            "rope_parameters": {"rope_theta": 90.0, "partial_rotary_factor": 0.5},
        },
        {
            **USUAL,
            **{key: value for key, value in GROUPS.items() if key != "n_routed_experts"},
            **SHARED,
            "rms_norm_eps": 1e-5,
            "num_experts": 8,
            "num_shared_experts": 1,
            "num_nextn_predict_layers": 0,
            "head_dim": DIM,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "rope_theta": 90.0,
            "partial_rotary_factor": 0.5,
        },
        bailing_v2,
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_the_same_model(name, stepper_class, tmp_path):
    check(name, FAMILIES[name], stepper_class, tmp_path)


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("BailingMoe", {"num_experts": 4, "norm_head": True}, "norm_head"),
        ("DeepseekV2", {"use_mla": False, "topk_method": "noaux_tc"}, "where it has no latents"),
        ("BailingMoeV2", {"moe_router_enable_expert_bias": False}, "corrects what experts score"),
    ],
)
def test_what_is_not_described_is_named(family, values, message, build_family):
    with pytest.raises(CheckpointError, match=message):
        build_family(family, **{**USUAL, "moe_intermediate_size": 8, **values})
