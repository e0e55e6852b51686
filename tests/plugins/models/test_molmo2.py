"""Values of Molmo 2 that are not served are refused by their keys."""

from pathlib import Path
from typing import Any

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.molmo2 import build


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("qk_norm_type", "none"),
        ("qk_norm_type", ["olmo"]),
        ("rope_scaling_layers", [0, 2]),
        ("rope_scaling_layers", [True]),
        ("rope_scaling_layers", 1),
    ],
)
def test_bad_values_are_named(key, value, build_family) -> None:
    known = build_family("Llama")
    ctx = BuildContext(known.selector, "float32", "float32", 4, 32)
    sizes: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    values = {**sizes, "num_key_value_heads": 2, "head_dim": 8, key: value}
    name = "Molmo2ForConditionalGeneration"
    with pytest.raises(CheckpointError, match=rf"config\.json: {key} is"):
        build(ModelConfig(Path("model"), name, values, "float32", 16, ()), ctx)
