"""Step 3's text part, alone and as published, against its formula."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import (
    CONFIG,
    DIM,
    HEADS,
    LAYERS,
    SIZE,
    WIDTH,
    Drawn,
    attended,
    check,
    mlp_names,
    rotated,
)
from torch import Tensor

from hotshoe.errors import CheckpointError

EXPERTS, CHOSEN, INNER, SHARED, LATENT = 6, 2, 32, 40, 24
OWN = {"num_key_value_heads": None}
STEP3 = {key: value for key, value in CONFIG.items() if key not in OWN} | {
    "architectures": ["Step3TextForCausalLM"],
    "model_type": "step3_text",
    "num_attention_groups": 1,
    "head_dim": DIM,
    "share_q_dim": LATENT,
    "moe_num_experts": EXPERTS,
    "moe_top_k": CHOSEN,
    "moe_intermediate_size": INNER,
    "share_expert_dim": SHARED,
    "norm_expert_weight": False,
    "moe_layers_enum": "1,2",
    "max_seq_len": LENGTH,
}


def narrow(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    latent = w.norm(w.linear(x, f"{prefix}q_proj", LATENT), f"{prefix}inter_norm")
    q = w.linear(latent, f"{prefix}wq", HEADS * DIM).view(len(x), HEADS, DIM)
    k, v = (w.linear(x, f"{prefix}{part}_proj", DIM).view(len(x), 1, DIM) for part in "kv")
    return w.linear(attended(rotated(q), rotated(k), v), f"{prefix}o_proj", SIZE)


def experts(w: Drawn, x: Tensor, prefix: str, divided: bool) -> Tensor:
    scores = w.linear(x, f"{prefix}gate", EXPERTS).softmax(-1)
    kept = torch.zeros_like(scores).scatter(1, scores.topk(CHOSEN).indices, 1) * scores
    if divided:
        kept = kept / kept.sum(-1, keepdim=True)
    gate, up = (
        w.of(f"{prefix}{part}_proj.weight", EXPERTS, INNER, SIZE) for part in ("gate", "up")
    )
    down = w.of(f"{prefix}down_proj.weight", EXPERTS, SIZE, INNER)
    inner = torch.nn.functional.silu(torch.einsum("nh,eih->eni", x, gate))
    inner = inner * torch.einsum("nh,eih->eni", x, up)
    return torch.einsum("eni,ehi,ne->nh", inner, down, kept)


def step3(w: Drawn, ids: Tensor, divided: bool = False) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        x = x + narrow(w, w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.")
        taken = w.norm(x, f"{prefix}post_attention_layernorm")
        if i:
            x = x + experts(w, taken, f"{prefix}moe.", divided)
            x = x + w.mlp(taken, mlp_names(f"{prefix}share_expert."), SHARED)
        else:
            x = x + w.mlp(taken, mlp_names(f"{prefix}mlp."), WIDTH)
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB)


def test_logits_are_those_of_the_formula(stepper_class, tmp_path: Path) -> None:
    config = STEP3 | {"norm_expert_weight": True}
    check(tmp_path, config, lambda w, ids: step3(w, ids, True), stepper_class)


def test_the_text_part_of_what_sees_is_the_same(stepper_class, tmp_path: Path) -> None:
    def seeing(w: Drawn, ids: Tensor) -> Tensor:
        for name in (
            "vision_model.layers.0.weight",
            "vit_downsampler.bias",
            "vit_downsampler2.bias",
        ):
            w.of(name, 3)
        w.of("vit_large_projector.weight", 3)
        return step3(w, ids)

    config = {"architectures": ["Step3VLForConditionalGeneration"], "text_config": STEP3}
    check(tmp_path, config, seeing, stepper_class)


def test_several_keys_are_refused(stepper_class, tmp_path: Path) -> None:
    values: dict[str, Any] = STEP3 | {"num_attention_groups": 2}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="one key for all heads"):
        stepper_class(tmp_path, LENGTH)
