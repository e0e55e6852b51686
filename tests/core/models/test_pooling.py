"""Pooling as sentence-transformers writes it beside a model."""

import json
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe.models.pooling import read_classifier, read_pooling
from hotshoe.types import Pooling
from hotshoe.types.classes import Classifier

ROOT = "sentence_transformers.models."


def write(path, pooling, *further, folder="1_Pooling"):
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{ROOT}Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": folder, "type": f"{ROOT}Pooling"})
    modules += [{"idx": 2, "name": "2", "path": "2", "type": ROOT + name} for name in further]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir(exist_ok=True)
    (path / "1_Pooling/config.json").write_text(json.dumps(pooling))


def flags(**true):
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    return {f"pooling_mode_{name}": name in true for name in names} | {"include_prompt": True}


def test_a_model_without_modules_makes_no_vectors(tmp_path) -> None:
    assert read_pooling(tmp_path) is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (flags(lasttoken=1), "last"),
        (flags(cls_token=1), "cls"),
        ({"pooling_mode": "max"}, "max"),
        (flags(mean_tokens=1), "mean"),
        ({"embedding_dimension": 8, "pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": "mean"}, "mean"),
        (flags() | {"pooling_mode_weightedmean_tokens": True}, "weighted_mean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len"),
    ],
)
def test_both_spellings_are_read(tmp_path, values, kind) -> None:
    write(tmp_path, values, "Normalize")
    assert read_pooling(tmp_path) == Pooling(kind, True)
    write(tmp_path, values)
    assert read_pooling(tmp_path) == Pooling(kind, False)


@pytest.mark.parametrize(
    ("values", "further", "words"),
    [
        (flags() | {"pooling_mode_first_tokens": True}, (), "first_tokens"),
        (flags(mean_tokens=1, lasttoken=1), (), "mean, lasttoken"),
        (flags(), (), "of no kind"),
        ({**flags(mean_tokens=1), "include_prompt": False}, (), "include_prompt"),
        (flags(mean_tokens=1), ("LayerNorm",), "'LayerNorm'"),
    ],
)
def test_what_is_not_served_is_named(tmp_path, values, further, words) -> None:
    write(tmp_path, values, *further)
    with pytest.raises(CheckpointError, match=words):
        read_pooling(tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", "[1]", "[" * 100_000])
def test_malformed_modules_are_named(tmp_path, text) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_no_file_outside_of_the_model_is_read(tmp_path) -> None:
    write(tmp_path, flags(mean_tokens=1), folder="../elsewhere")
    with pytest.raises(CheckpointError, match="lies outside the model"):
        read_pooling(tmp_path)


def config(**values) -> ModelConfig:
    return ModelConfig(Path(), "LlamaForSequenceClassification", values, "float32", 8, ())


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Classifier(("LABEL_0", "LABEL_1"), "softmax")),
        ({"id2label": {"1": "b", "0": "a"}}, Classifier(("a", "b"), "softmax")),
        ({"id2label": {"0": "a"}}, Classifier(("a",), "sigmoid")),
        ({"id2label": {"0": "a"}, "num_labels": 2}, Classifier(("LABEL_0", "LABEL_1"), "softmax")),
        ({"num_labels": 1, "problem_type": "regression"}, Classifier(("LABEL_0",))),
        (
            {"num_labels": 1, "sentence_transformers": {"activation_fn": "torch.nn.Identity"}},
            Classifier(("LABEL_0",)),
        ),
        ({"num_labels": 1, "use_sep_token": False}, Classifier(("LABEL_0",), "sigmoid", False)),
        ({"classifier_from_token": ["no", 7]}, Classifier(("no", "7"), "softmax", False)),
        (
            {"classifier_from_token": ["no", "yes"], "method": "from_2_way_softmax"},
            Classifier(("LABEL_0",), "sigmoid", False),
        ),
    ],
)
def test_classes_are_read(values, expected) -> None:
    assert read_classifier(config(**values)) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"id2label": ["a", "b"]},
        {"id2label": {"a": "0", "b": "1"}},
        {"num_labels": -1},
        {"problem_type": []},
        {"classifier_from_token": [True]},
    ],
)
def test_malformed_classes_are_refused(values) -> None:
    with pytest.raises(CheckpointError):
        read_classifier(config(**values))
