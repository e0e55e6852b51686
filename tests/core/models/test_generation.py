"""Sampling defaults of a checkpoint: what is read, from where, and what is refused."""

import json

import pytest

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.models.generation import sampling_defaults

QWEN = {
    "do_sample": True,
    "eos_token_id": [1, 2],
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": None,
    "max_new_tokens": 512,
    "num_beams": 4,
}
FOUND = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_tokens": 512}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "generation_config.json").write_text(json.dumps(QWEN))
    return tmp_path


def test_only_sampling_is_read(model, tmp_path):
    assert sampling_defaults("auto", model) == FOUND
    assert sampling_defaults("none", model) == {}


def test_a_model_without_the_file_has_no_defaults(tmp_path):
    assert sampling_defaults("auto", tmp_path) == {}


def test_another_file_or_directory(model, tmp_path):
    other = tmp_path / "elsewhere"
    other.mkdir()
    for choice in (model, model / "generation_config.json"):
        assert sampling_defaults(str(choice), other) == FOUND
    with pytest.raises(CheckpointError, match=r"elsewhere/generation_config\.json is missing"):
        sampling_defaults(str(other), model)
    with pytest.raises(CheckpointError, match="nowhere is missing"):
        sampling_defaults(str(other / "nowhere"), model)


def test_entries_may_be_replaced(model, tmp_path):
    overrides = {"top_k": 5, "max_new_tokens": 9}
    replaced = FOUND | {"top_k": 5, "max_tokens": 9}
    assert sampling_defaults("auto", model, overrides) == replaced
    assert sampling_defaults("none", model, overrides) == {"top_k": 5, "max_tokens": 9}


@pytest.mark.parametrize(
    ("overrides", "cause"),
    [
        ({"top_q": 1}, "'top_q' is no default of sampling"),
        ({"temperature": -1}, "temperature must be in"),
        ({"top_k": "x"}, "top_k must be an integer"),
    ],
)
def test_entries_that_cannot_replace_are_named(model, overrides, cause):
    with pytest.raises(ConfigError, match=f"override_generation_config: {cause}"):
        sampling_defaults("auto", model, overrides)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("{", "cannot be read"),
        ("[]", "must hold a JSON object"),
        ('{"temperature": -1}', "temperature"),
        ('{"top_p": "high"}', "top_p"),
        ('{"top_k": 1.5}', "top_k"),
        ('{"max_new_tokens": true}', "max_tokens"),
        ('{"repetition_penalty": NaN}', "repetition_penalty"),
        ('{"min_p": [0.1]}', "min_p"),
    ],
)
def test_a_bad_file_is_named(model, text, cause):
    path = model / "generation_config.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=cause) as caught:
        sampling_defaults("auto", model)
    assert str(path) in str(caught.value)
    assert sampling_defaults("none", model) == {}
