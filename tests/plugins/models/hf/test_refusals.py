"""Models that transformers' code cannot run for over paged caches are refused by name."""

import pathlib
import sys

import pytest
import transformers

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.models import ModelConfig
from hotshoe.types.mesh import Axis
from hotshoe_models import hf
from hotshoe_models.hf import build

GEMMA3N = {"laurel_rank": 8, "num_kv_shared_layers": 0}


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("MambaForCausalLM", {}, "keeps a state"),
        ("BloomForCausalLM", {}, "has attention of its own"),
        (
            "Lfm2ForCausalLM",
            {"layer_types": ["conv", "full_attention"]},
            "layers of kind conv",
        ),
        (
            "LlamaForCausalLM",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}},
            "rope_type dynamic, which texts change",
        ),
        ("BertLMHeadModel", {}, "BertLMHeadModel: bert.* is not causal"),
        ("Gemma3nForCausalLM", GEMMA3N, "an input for each layer by the ids of tokens"),
        ("RobertaForCausalLM", {"is_decoder": True}, "positions from those of padding"),
        ("T5ForConditionalGeneration", {}, "T5ForConditionalGeneration has an encoder"),
        ("BlipForConditionalGeneration", {}, "has attention of its own"),
        ("PhimoeForCausalLM", {"sliding_window": 8}, "windows that attention is not told of"),
    ],
)
def test_models_that_do_more(kind, values, reason, described, context) -> None:
    with pytest.raises(CheckpointError, match=reason) as raised:
        build(described(kind, **values), context())
    check_words(raised.value)


def check_words(error: Exception) -> None:
    """What is refused here may well have a description, and --model-impl transformers stand."""
    assert "no plugin" not in str(error)
    assert "`hotshoe plugins` lists, with --model-impl native" in str(error)


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        ("GPT2LMHeadModel", {"n_layer": 2}, "no plan of stages|something beside its layers"),
    ],
)
def test_stages(kind, values, reason, described, context) -> None:
    message = rf"pipeline_parallel_size 2.*({reason}).*leave it at 1"
    with pytest.raises(ConfigError, match=message):
        build(described(kind, **values), context(stage=Axis(0, 2)))


def test_more_stages_than_layers(described, context) -> None:
    with pytest.raises(ConfigError, match="pipeline_parallel_size 3 exceeds the model's 2 layers"):
        build(described("HeliumForCausalLM"), context(stage=Axis(0, 3)))


def test_classes_that_write_no_text(described, context) -> None:
    with pytest.raises(CheckpointError, match="no class of the name 'BertModel' that writes text"):
        build(described("BertModel"), context())


def test_code_of_a_checkpoint_is_not_run(context) -> None:
    values = {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.OwnForCausalLM"}}
    config = ModelConfig(pathlib.Path("model"), "OwnForCausalLM", values, "float32", 16, ())
    with pytest.raises(CheckpointError, match="code that the checkpoint brings") as raised:
        build(config, context())
    check_words(raised.value)


def test_a_foreign_model_type(described, context) -> None:
    config = described("HeliumForCausalLM")
    config.values["model_type"] = "llama"
    with pytest.raises(CheckpointError, match="model_type 'llama' does not belong to Helium"):
        build(config, context())


def test_values_that_transformers_refuses(described, context) -> None:
    config = described("HeliumForCausalLM")
    config.values["hidden_act"] = "nothing"
    with pytest.raises(CheckpointError, match="Helium"):
        build(config, context())


def test_without_transformers(monkeypatch, described, context) -> None:
    config = described("HeliumForCausalLM")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"pip install 'hotshoe-models\[tran") as raised:
        build(config, context())
    check_words(raised.value)


def test_an_old_release(monkeypatch, described, context) -> None:
    config = described("HeliumForCausalLM")
    monkeypatch.setattr(hf, "OLDEST", (99, 1))
    with pytest.raises(ConfigError, match=r"needs transformers 99\.1 or newer, and \d"):
        build(config, context())


def test_numbers_that_json_lacks_are_no_reason(tmp_path, context) -> None:
    """transformers writes them as objects, and reads them so from files alone."""
    kind = transformers.Mamba2ForCausalLM
    written = kind.config_class(num_heads=4, head_dim=16, hidden_size=32, num_hidden_layers=1)
    written.architectures = [kind.__name__]
    written.save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    with pytest.raises(CheckpointError, match="keeps a state"):
        build(ModelConfig.load(tmp_path), context())
