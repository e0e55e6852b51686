"""SmallThinker against its formula."""

import json
from functools import partial
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
    rotated,
    routed,
)
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import CheckpointError

EXPERTS, TOP_K, WIDTH, WINDOW = 5, 2, 32, 7
THINKER: dict[str, Any] = CONFIG | {
    "architectures": ["SmallThinkerForCausalLM"],
    "head_dim": DIM,
    "moe_num_primary_experts": EXPERTS,
    "moe_num_active_primary_experts": TOP_K,
    "moe_ffn_hidden_size": WIDTH,
    "rope_layout": [0, 1, 1],
    "sliding_window_layout": [0, 1, 1],
    "sliding_window_size": WINDOW,
}


def weights_of(logits: Tensor, softmax: bool) -> Tensor:
    """Return what experts count: of the best logits, those of each token sum to 1."""
    best, chosen = logits.topk(TOP_K, -1)
    scores = best.exp() if softmax else best.sigmoid()
    scores = scores / scores.sum(-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, chosen, scores)


def names(prefix: str, i: int) -> tuple[str, str, str]:
    return (f"{prefix}{i}.gate", f"{prefix}{i}.up", f"{prefix}{i}.down")


def attention(w: Drawn, x: Tensor, prefix: str, window: int | None, rotates: bool) -> Tensor:
    q, k, v = (
        w.linear(x, f"{prefix}{part}_proj", count * DIM).view(len(x), count, DIM)
        for part, count in zip("qkv", (HEADS, KV_HEADS, KV_HEADS), strict=True)
    )
    if rotates:
        q, k = rotated(q), rotated(k)
    return w.linear(attended(q, k, v, window=window), f"{prefix}o_proj", SIZE)


def thinker(w: Drawn, ids: Tensor, softmax: bool = False, windows: bool = True) -> Tensor:
    """Layers rotate that have a window; all do where none has."""
    x = w.of("model.embed_tokens.weight", CONFIG["vocab_size"], SIZE)[ids]
    for i in range(LAYERS):
        prefix, window = f"model.layers.{i}.", WINDOW if windows and i else None
        moe = f"{prefix}block_sparse_moe."
        weights = weights_of(w.linear(x, f"{moe}primary_router", EXPERTS), softmax)
        normed = w.norm(x, f"{prefix}input_layernorm")
        x = x + attention(w, normed, f"{prefix}self_attn.", window, not windows or i > 0)
        normed, named = w.norm(x, f"{prefix}post_attention_layernorm"), f"{moe}experts."
        x = x + routed(w, normed, weights, partial(names, named), WIDTH, functional.relu)
    return w.linear(w.norm(x, "model.norm"), "lm_head", CONFIG["vocab_size"])


@pytest.mark.parametrize("softmax", [False, True])
def test_logits_are_those_of_the_formula(softmax: bool, stepper_class, tmp_path: Path) -> None:
    config = THINKER | {"moe_primary_router_apply_softmax": softmax}
    check(tmp_path, config, partial(thinker, softmax=softmax), stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_layout": [0, 1]}, "needs 0 or 1 for each of 3 layers"),
        ({"sliding_window_layout": [0, 1, 2]}, "needs 0 or 1 for each of 3 layers"),
        ({"moe_layer_layout": [1, 0, 1]}, "has experts in every layer"),
        ({"moe_enable_secondary_experts": True}, "is served with False alone"),
        ({"sliding_window_size": 0}, "sliding_window_size"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(THINKER | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)
