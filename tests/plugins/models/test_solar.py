"""Solar against its formula."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.models.conftest import LENGTH, VOCAB
from tests.plugins.models.plain import CONFIG, SIZE, Drawn, attention, check, mlp_names
from torch import Tensor

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers.context import Axis

LAYERS, SHARE = 6, 0.8
SOLAR = CONFIG | {
    "architectures": ["SolarForCausalLM"],
    "num_hidden_layers": LAYERS,
    "sliding_window": LENGTH,
    "bskcn_1": [0, 2],
    "bskcn_2": [2],
    "bskcn_3": [1, 4],
    "bskcn_4": [4, 5],
    "bskcn_tv": [0.9, SHARE],
    "logit_scale": 0.5,
}


def solar(w: Drawn, ids: Tensor) -> Tensor:
    x = w.of("model.embed_tokens.weight", VOCAB, SIZE)[ids]
    kept = {}
    for i in range(LAYERS):
        prefix = f"model.layers.{i}."
        kept |= {place: x for place in (1, 2) if i in SOLAR[f"bskcn_{place}"]}
        for place in (3, 4):
            if i in SOLAR[f"bskcn_{place}"]:
                x = kept[place - 2] * SHARE + x * (1 - SHARE)
        x = x + attention(w, w.norm(x, f"{prefix}input_layernorm"), f"{prefix}self_attn.")
        taken = w.norm(x, f"{prefix}post_attention_layernorm")
        x = x + w.mlp(taken, mlp_names(f"{prefix}mlp."))
    return w.linear(w.norm(x, "model.norm"), "lm_head", VOCAB) * 0.5


def test_logits_are_those_of_the_formula(stepper_class, tmp_path: Path) -> None:
    check(tmp_path, SOLAR, solar, stepper_class)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sliding_window": 16}, "up to it; lower --max-model-len"),
        ({"bskcn_1": None}, "needs a list of layers"),
        ({"bskcn_4": [1]}, "mixes what bskcn_2 has kept"),
        ({"bskcn_tv": [0.9]}, "needs two numbers"),
        ({"bskcn_tv": [0.9, 1.5]}, "between 0 and 1"),
    ],
)
def test_what_changes_the_shape_is_named(
    values: dict[str, Any], message: str, stepper_class, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SOLAR | values))
    with pytest.raises(CheckpointError, match=message):
        stepper_class(tmp_path, LENGTH)


def test_stages_are_refused(stepper_class, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SOLAR))
    with pytest.raises(ConfigError, match="the residual of earlier ones"):
        stepper_class(tmp_path, LENGTH, stage=Axis(0, 2))
