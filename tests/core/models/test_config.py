"""A model directory's configuration: what is read, and what is said of what cannot be."""

import json
import math
import os
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig

BASE = {"architectures": ["SomeForCausalLM"], "max_position_embeddings": 4096}


@pytest.fixture
def write(tmp_path):
    def write(values, name="config.json"):
        text = values if isinstance(values, str) else json.dumps(values)
        (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_the_facts_that_the_engine_needs(write):
    path = write({**BASE, "torch_dtype": "bfloat16", "eos_token_id": [7, 9]})
    config = ModelConfig.load(path)
    assert (config.architecture, config.dtype) == ("SomeForCausalLM", "bfloat16")
    assert (config.max_model_len, config.eos_token_ids) == (4096, (7, 9))


def test_older_files_name_their_positions(write):
    values = {key: value for key, value in BASE.items() if key != "max_position_embeddings"}
    assert ModelConfig.load(write({**values, "n_positions": 77})).max_model_len == 77
    assert ModelConfig.load(write({**BASE, "n_positions": 77})).max_model_len == 4096
    with pytest.raises(CheckpointError, match=r"n_positions.*-1"):
        ModelConfig.load(write({**values, "n_positions": -1}))


def test_encoders_have_positions_that_no_token_has(write):
    path = write({**BASE, "max_position_embeddings": 514})
    plain, known = (
        ModelConfig.load(path),
        ModelConfig.load(path, encoders={BASE["architectures"][0]: 2}),
    )
    assert (plain.max_model_len, plain.whole_prompts) == (514, False)
    assert (known.max_model_len, known.whole_prompts) == (512, True)


def test_lengths_of_architectures_are_for_files_without_one(write):
    lengths = {"SomeForCausalLM": 99}
    path = write({**BASE, "max_position_embeddings": None})
    assert ModelConfig.load(path, lengths=lengths).max_model_len == 99
    assert ModelConfig.load(path, lengths={"Other": 99}).max_model_len == 2048
    assert ModelConfig.load(write(BASE), lengths=lengths).max_model_len == 4096


def test_both_spellings_of_the_type(write):
    assert ModelConfig.load(write({**BASE, "dtype": "float16"})).dtype == "float16"
    assert ModelConfig.load(write({**BASE, "torch_dtype": "torch.float16"})).dtype == "float16"
    assert ModelConfig.load(write(BASE)).dtype == "float32"


@pytest.mark.parametrize("value", ["float7", "auto", 5, ["float32"], "Tensor"])
def test_types_that_no_weights_have_are_refused(write, value):
    with pytest.raises(CheckpointError, match="is no type of weights; known: float32, bfloat16"):
        ModelConfig.load(write({**BASE, "dtype": value}))


def test_the_generation_config_has_the_say_on_ends(write):
    write({"eos_token_id": 3}, "generation_config.json")
    assert ModelConfig.load(write({**BASE, "eos_token_id": 5})).eos_token_ids == (3,)
    write({"temperature": 0.7}, "generation_config.json")
    assert ModelConfig.load(write({**BASE, "eos_token_id": 5})).eos_token_ids == (5,)
    assert ModelConfig.load(write(BASE)).eos_token_ids == ()


def test_overrides_replace_and_nested_ones_merge(write):
    path = write({**BASE, "rope_scaling": {"type": "linear", "factor": 2.0}})
    overrides = {"max_position_embeddings": 99, "rope_scaling": {"factor": 4.0}}
    config = ModelConfig.load(path, overrides)
    assert config.max_model_len == 99
    assert config.get("rope_scaling") == {"type": "linear", "factor": 4.0}


def test_null_counts_as_absent(write):
    config = ModelConfig.load(write({**BASE, "head_dim": None}))
    assert config.get("head_dim", 5) == 5 and config.size("head_dim", 6) == 6
    with pytest.raises(CheckpointError, match="head_dim"):
        config.require("head_dim")
    with pytest.raises(CheckpointError, match="head_dim"):
        config.size("head_dim")


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
def test_sizes_are_positive_integers(write, value):
    config = ModelConfig.load(write({**BASE, "hidden_size": value}))
    with pytest.raises(CheckpointError, match=r"hidden_size.*positive integer"):
        config.size("hidden_size")


def test_sizes_that_no_model_has_are_refused_at_once(write):
    config = ModelConfig.load(write({**BASE, "num_hidden_layers": 10**7, "vocab_size": 10**9}))
    with pytest.raises(CheckpointError, match="num_hidden_layers must be at most 1000"):
        config.size("num_hidden_layers")
    with pytest.raises(CheckpointError, match="vocab_size must be at most"):
        config.size("vocab_size")


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 8192),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4}}, 16384),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 2048,
                }
            },
            8192,
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 512,
                }
            },
            4096,
        ),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": "many"}}, 4096),
        ({"rope_scaling": {"type": "linear", "factor": {"__float__": "Infinity"}}}, 4096),
        ({"rope_scaling": {"type": ["linear"], "factor": 2.0}}, 4096),
        ({"rope_scaling": None, "rope_parameters": None}, 4096),
        ({"rope_scaling": "linear"}, 4096),
    ],
)
def test_scaled_rotations_reach_further(write, rope, longest):
    config = ModelConfig.load(write({**BASE, **rope}))
    assert (config.max_model_len, config.longest_len) == (4096, longest)


def test_numbers_that_json_lacks_are_read_as_transformers_writes_them(write):
    limits = [0.0, {"__float__": "Infinity"}]
    others = {"__float__": "-Infinity"}, {"__float__": "many"}, {"__float__": []}, {"a": 1}
    values = ModelConfig.load(write({**BASE, "limits": limits, "others": [*others]})).values
    assert values["limits"] == [0.0, math.inf]
    assert values["others"] == [-math.inf, *others[1:]]


def test_a_missing_directory_says_what_to_give(tmp_path):
    with pytest.raises(CheckpointError, match=r"no model at .*nowhere.*local directory"):
        ModelConfig.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="demo, with hotshoe-hub ORGANIZATION/MODEL"):
        ModelConfig.load(Path("Someone/Model-7B"))
    with pytest.raises(CheckpointError, match="no model at /dev/null"):
        ModelConfig.load(Path(os.devnull))


def test_what_is_no_model_directory_is_named(tmp_path):
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    for path in (gguf, tmp_path):
        with pytest.raises(CheckpointError, match=r"model\.gguf is a file of a kind that no"):
            ModelConfig.load(path)
    weights = tmp_path / "model.safetensors"
    weights.touch()
    with pytest.raises(CheckpointError, match="give the directory"):
        ModelConfig.load(weights)
    with pytest.raises(CheckpointError, match="cannot be read: File name too long"):
        ModelConfig.load(tmp_path / ("a" * 5000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read: maximum recursion depth"),
        ("[1]", "must hold a JSON object"),
        ("{}", "names no architecture: its field 'architectures' must be"),
        ('{"architectures": []}', "names no architecture"),
        ('{"architectures": "Llama"}', "names no architecture"),
        ('{"architectures": ["A"], "max_position_embeddings": -4}', "max_position_embeddings"),
        ('{"architectures": ["A"], "eos_token_id": "end"}', "eos_token_id.*'end'"),
        ('{"architectures": ["A"], "eos_token_id": [3, -1]}', "eos_token_id must be a token id"),
        ('{"architectures": ["A"], "eos_token_id": true}', "eos_token_id must be a token id"),
    ],
)
def test_malformed_files_are_named(write, text, message):
    with pytest.raises(CheckpointError, match=message):
        ModelConfig.load(write(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(
        CheckpointError, match=r"config\.json is missing; a model's directory holds"
    ):
        ModelConfig.load(tmp_path)
