"""The text part of a model that sees: its values and names come to their usual places."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe.models.composites import TEXT_NAMES, text_names, text_values
from hotshoe.models.quantization import stored_quantization

ARCHITECTURES = ["SeeingForConditionalGeneration"]
TEXT = {
    "model_type": "text",
    "hidden_size": 64,
    "max_position_embeddings": 99,
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "rope_parameters": {"rope_theta": 5.0, "rope_type": "default"},
}
WHOLE = {
    "architectures": ARCHITECTURES,
    "model_type": "whole",
    "vision_config": {"hidden_size": 8},
    "text_config": TEXT,
}


def load(path: Path, overrides: dict[str, Any] | None = None, **more: Any) -> ModelConfig:
    (path / "config.json").write_text(json.dumps({**WHOLE, **more}))
    return ModelConfig.load(path, overrides)


def test_the_text_models_values_are_at_the_top(tmp_path: Path) -> None:
    config = load(tmp_path, hidden_size=3)
    assert config.size("hidden_size") == 64
    assert (config.max_model_len, config.dtype, config.eos_token_ids) == (99, "bfloat16", (1,))
    assert config.get("text_config") == TEXT


def test_the_whole_says_what_it_is_and_where_a_text_ends(tmp_path: Path) -> None:
    config = load(tmp_path, eos_token_id=[7, 8])
    assert config.architecture == ARCHITECTURES[0]
    assert (config.get("model_type"), config.eos_token_ids) == ("whole", (7, 8))


@pytest.mark.parametrize("nested", [False, True])
def test_overrides_win_wherever_they_are_given(tmp_path: Path, nested: bool) -> None:
    given = {"hidden_size": 32, "rope_parameters": {"rope_theta": 9.0}}
    config = load(tmp_path, {"text_config": given} if nested else given)
    assert config.size("hidden_size") == 32
    assert config.get("rope_parameters") == {"rope_theta": 9.0, "rope_type": "default"}


def test_a_model_that_speaks_has_its_text_in_its_reader(tmp_path: Path) -> None:
    reader = {"model_type": "reader", "text_config": TEXT, "eos_token_id": 4}
    spoken = {"architectures": ARCHITECTURES, "model_type": "whole", "thinker_config": reader}
    (tmp_path / "config.json").write_text(json.dumps(spoken))
    config = ModelConfig.load(tmp_path)
    assert (config.size("hidden_size"), config.get("model_type")) == (64, "whole")
    assert (config.get("text_config"), config.eos_token_ids) == (TEXT, (4,))


def test_nothing_changes_without_a_text_config() -> None:
    for values in ({"a": 1}, {"a": 1, "text_config": None}, {"a": 1, "text_config": 3}):
        assert text_values(values) == values


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [
        (True, True, True),
        (None, True, True),
        (True, None, True),
        (False, True, False),
        (True, False, False),
        (False, None, False),
        (None, None, None),
    ],
)
def test_the_embedding_is_shared_where_nobody_denies_it(outer, inner, tied) -> None:
    key = "tie_word_embeddings"
    said = {**WHOLE, key: outer, "text_config": {**TEXT, key: inner}}
    assert text_values(said)[key] is tied


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("model.language_model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("language_model.model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ("model.language_model.model.norm", "model.norm"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("model.language_model.lm_head", "lm_head"),
        ("lm_head.weight", "lm_head.weight"),
        ("model.visual.blocks.0.weight", "model.visual.blocks.0.weight"),
        (r"re:.*visual.*", r"re:.*visual.*"),
        (r"re:^model\.language_model\.layers\.\d+\.mlp", r"re:^model.layers\.\d+\.mlp"),
        ("re:language_model.model.layers.*", "re:model.layers.*"),
    ],
)
def test_names(name: str, known: str) -> None:
    assert text_names(name) == known
    assert text_names({name: [name, 3, None]}) == {known: [known, 3, None]}
    if not name.startswith("re:"):
        for pattern, replacement in TEXT_NAMES:
            name = re.sub(f"^{pattern}", replacement, name)
        assert name == known


def test_a_quantized_checkpoint_names_layers_as_the_text_model_does(tmp_path: Path) -> None:
    kept = ["model.language_model.layers.0.mlp.gate", "model.visual.merger"]
    given = {"quant_method": "fp8", "modules_to_not_convert": kept}
    found = stored_quantization(load(tmp_path, quantization_config=given))
    assert found == {**given, "modules_to_not_convert": ["model.layers.0.mlp.gate", kept[1]]}
    inner = {**TEXT, "quantization_config": {"quant_method": "awq"}}
    assert stored_quantization(load(tmp_path, text_config=inner)) == {"quant_method": "awq"}
    with pytest.raises(CheckpointError, match="twice, each time otherwise"):
        stored_quantization(load(tmp_path, text_config=inner, quantization_config=given))
