"""Ouro: rounds over the same layers, against their formula."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import (
    CONFIG,
    LAYERS,
    SIZE,
    Drawn,
    attention,
    check,
    mlp_names,
)
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers.context import Axis

ROUNDS, WINDOW = 3, 7
OURO = {
    **CONFIG,
    "architectures": ["OuroForCausalLM"],
    "total_ut_steps": ROUNDS,
    "early_exit_threshold": 1.0,
}


def ouro(w: Drawn, ids: Tensor, window: int | None = None) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    for _ in range(ROUNDS):
        for i in range(LAYERS):
            prefix = f"model.layers.{i}."
            seen = window if i == LAYERS - 1 else None
            out = attention(
                w, w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.", window=seen
            )
            x = x + w.norm(out, f"{prefix}input_layernorm_2")
            out = w.mlp(w.norm(x, f"{prefix}post_attention_layernorm"), mlp_names(f"{prefix}mlp."))
            x = x + w.norm(out, f"{prefix}post_attention_layernorm_2")
        x = w.norm(x, "model.norm")
        w.linear(x, "model.early_exit_gate", 1)
    return w.linear(x, "lm_head", VOCAB)


@pytest.mark.parametrize("window", [None, WINDOW])
def test_logits_are_those_of_the_formula(window: int | None, stepper_class, tmp_path: Path) -> None:
    own = {"use_sliding_window": True, "sliding_window": window, "max_window_layers": LAYERS - 1}
    config = OURO if window is None else OURO | own
    check(tmp_path, config, lambda w, ids: ouro(w, ids, window), stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"early_exit_threshold": 0.5}, "early_exit_threshold"),
        ({"early_exit_step": 1}, "change total_ut_steps"),
        ({"total_ut_steps": 65}, "up to 64 rounds"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OURO | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)


def test_stages_are_refused(stepper_class, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OURO))
    with pytest.raises(ConfigError, match="several times"):
        stepper_class(tmp_path, LENGTH, stage=Axis(0, 2))
