"""Arctic: experts beside attention and an MLP, against their formula."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import CONFIG, LAYERS, SIZE, WIDTH, Drawn, attention, check, routed
from torch import Tensor

from hotshoe.errors import CheckpointError

EXPERTS, CHOSEN = 4, 2
ARCTIC = {
    **CONFIG,
    "architectures": ["ArcticForCausalLM"],
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "moe_layer_frequency": 2,
    "parallel_attn_mlp_res": True,
}


def names(prefix: str) -> tuple[str, str, str]:
    return f"{prefix}w1", f"{prefix}w3", f"{prefix}w2"


def experts(w: Drawn, x: Tensor, prefix: str) -> Tensor:
    weights = w.linear(x, f"{prefix}gate", EXPERTS).softmax(-1)
    kept = torch.zeros_like(weights).scatter(1, weights.topk(CHOSEN).indices, 1) * weights
    return routed(w, x, kept / kept.sum(-1, keepdim=True), lambda i: names(f"{prefix}experts.{i}."))


def arctic(w: Drawn, ids: Tensor, every: int, beside: bool) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        before, block = x, f"{prefix}block_sparse_moe."
        x = x + attention(w, w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.")
        sparse = (i + 1) % every == 0
        if sparse and beside:
            taken = w.norm(before, f"{prefix}post_attention_layernorm")
            dense = w.norm(x, f"{prefix}residual_layernorm")
            x = x + w.mlp(dense, names(f"{prefix}residual_mlp."), SIZE) + experts(w, taken, block)
            continue
        taken = w.norm(x, f"{prefix}post_attention_layernorm")
        x = x + (experts(w, taken, block) if sparse else w.mlp(taken, names(f"{block}mlp."), WIDTH))
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB)


@pytest.mark.parametrize(("every", "beside"), [(1, True), (2, True), (2, False)])
def test_logits_are_those_of_the_formula(
    every: int, beside: bool, stepper_class, tmp_path: Path
) -> None:
    config = ARCTIC | {"moe_layer_frequency": every, "parallel_attn_mlp_res": beside}
    check(tmp_path, config, partial(arctic, every=every, beside=beside), stepper_class)


def test_a_window_is_refused(stepper_class, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ARCTIC | {"sliding_window": 16}))
    with pytest.raises(CheckpointError, match="sliding_window"):
        stepper_class(tmp_path, LENGTH)
