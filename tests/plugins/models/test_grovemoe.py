"""GroveMoE against its formula."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.models.conftest import LENGTH
from tests.plugins.models.plain import (
    CONFIG,
    DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    SIZE,
    Drawn,
    attended,
    check,
    mlp_names,
    rotated,
    routed,
)
from torch import Tensor

from hotshoe.errors import CheckpointError

EXPERTS, TOP_K, WIDTH, SMALL, FACTOR = 6, 3, 32, 64, 0.7
GROVE: dict[str, Any] = CONFIG | {
    "architectures": ["GroveMoeForCausalLM"],
    "head_dim": DIM,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": WIDTH,
    "expert_chunk_feed_forward_length": SMALL,
    "expert_group_scale": FACTOR,
}


def heads(w: Drawn, x: Tensor, name: str, count: int) -> Tensor:
    return w.linear(x, f"{name}_proj", count * DIM).view(len(x), count, DIM)


def experts(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    """Add up chosen experts, and for each the one of its pair, with the same weight."""
    scores, chosen = w.linear(x, f"{prefix}gate", EXPERTS).softmax(-1).topk(TOP_K, -1)
    scores = scores / scores.sum(-1, keepdim=True)
    weights = torch.zeros(len(x), EXPERTS).scatter(1, chosen, scores)
    pairs = torch.zeros(len(x), EXPERTS // 2).scatter_add(1, chosen // 2, scores)
    large = routed(w, x, weights, lambda i: mlp_names(f"{prefix}experts.{i}."), WIDTH)
    small = routed(w, x, pairs, lambda i: mlp_names(f"{prefix}chunk_experts.{i}."), SMALL)
    return large + FACTOR * small


def grove(w: Drawn, ids: Tensor) -> Tensor:
    x = w.of("model.embed_tokens.weight", CONFIG["vocab_size"], SIZE)[ids]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        attn, normed = f"{prefix}self_attn.", w.norm(x, f"{prefix}input_layernorm")
        q = rotated(w.norm(heads(w, normed, f"{attn}q", HEADS), f"{attn}q_norm"))
        k = rotated(w.norm(heads(w, normed, f"{attn}k", KV_HEADS), f"{attn}k_norm"))
        out = attended(q, k, heads(w, normed, f"{attn}v", KV_HEADS))
        x = x + w.linear(out, f"{attn}o_proj", SIZE)
        x = x + experts(w, w.norm(x, f"{prefix}post_attention_layernorm"), f"{prefix}mlp.")
        w.of(f"{prefix}mlp.expert_bias", EXPERTS)  # which nobody reads
    return w.linear(w.norm(x, "model.norm"), "lm_head", CONFIG["vocab_size"])


def test_logits_are_those_of_the_formula(stepper_class, tmp_path: Path) -> None:
    check(tmp_path, GROVE, grove, stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"experts_per_group": 4}, "has 6 experts to divide"),
        ({"expert_group_scale": 0}, "positive"),
    ],
)
def test_bad_values_are_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GROVE | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
