"""Grok 1 against its formula."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import CONFIG, LAYERS, SIZE, Drawn, attention, check, routed
from torch import Tensor
from torch.nn import functional

from hotshoe.errors import CheckpointError

EXPERTS, CHOSEN = 4, 2
GROK = {key: value for key, value in CONFIG.items() if key != "rope_theta"} | {
    "architectures": ["Grok1ModelForCausalLM"],
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "attn_output_multiplier": 0.5,
    "max_attn_value": 2.0,
    "embedding_multiplier_scale": 3.0,
    "output_multiplier_scale": 0.25,
    "rope_theta": 100.0,
}


def expert(block: str, i: int) -> tuple[str, str, str]:
    prefix = f"{block}experts.{i}."
    return f"{prefix}linear", f"{prefix}linear_v", f"{prefix}linear_1"


def grok(w: Drawn, ids: Tensor) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids] * 3
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        taken, block = w.norm(x, f"{prefix}pre_attn_norm"), f"{prefix}moe_block."
        out = attention(w, taken, f"{prefix}attn.", scale=0.5, softcap=2.0)
        x = x + w.norm(out, f"{prefix}post_attn_norm")
        taken = w.norm(x, f"{prefix}pre_moe_norm")
        weights = w.linear(taken, f"{block}gate", EXPERTS).softmax(-1)
        kept = torch.zeros_like(weights).scatter(1, weights.topk(CHOSEN).indices, 1) * weights
        names = partial(expert, block)
        out = routed(w, taken, kept, names, act=functional.gelu)
        x = x + w.norm(out, f"{prefix}post_moe_norm")
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB) * 0.25


def test_logits_are_those_of_the_formula(stepper_class, tmp_path: Path) -> None:
    check(tmp_path, GROK, grok, stepper_class)


@pytest.mark.parametrize("values", [{"residual_moe": True}, {"router_logit_softcapping": 30.0}])
def test_the_later_form_is_refused(values: dict[str, Any], stepper_class, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GROK | values))
    with pytest.raises(CheckpointError, match="as Grok 1 is"):
        stepper_class(tmp_path, LENGTH)
