"""Matrices beside a model, as files name them."""

import json

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe.models.modules import Dense, Projection, read_projection


def write(path, *names, **changes):
    """Write a model directory with modules; those named Dense go from 8 to 6 to 4 numbers."""
    (path / "config.json").write_text(
        json.dumps({"architectures": ["BertModel"], "hidden_size": 8})
    )
    size = 8
    for i, name in enumerate(names):
        if name == "Dense":
            folder = path / f"{i}_Dense"
            folder.mkdir()
            values = {"in_features": size, "out_features": size - 2, "bias": False}
            (folder / "config.json").write_text(json.dumps(values | changes))
            size -= 2
    modules = [{"type": f"models.{n}", "path": f"{i}_{n}"} for i, n in enumerate(names)]
    (path / "modules.json").write_text(json.dumps(modules))
    return ModelConfig.load(path)


def test_matrices_behind_the_pooling_act_on_texts(tmp_path) -> None:
    config = write(tmp_path, "Transformer", "Pooling", "Dense", "Dense", "Normalize")
    first = Dense(tmp_path / "2_Dense", 8, 6, False, "Identity")
    second = Dense(tmp_path / "3_Dense", 6, 4, False, "Identity")
    found = read_projection(config)
    assert found == Projection((first, second), by_token=False) and found.size == 4


def test_without_a_pooling_they_act_on_tokens(tmp_path) -> None:
    more = {"activation_function": "torch.nn.modules.activation.Tanh", "bias": True}
    found = read_projection(write(tmp_path, "Transformer", "Dense", **more))
    assert found == Projection((Dense(tmp_path / "1_Dense", 8, 6, True, "Tanh"),), by_token=True)


def test_colbert_has_a_file_of_its_own(tmp_path) -> None:
    config = write(tmp_path)
    (tmp_path / "modules.json").unlink()
    assert read_projection(config) is None
    (tmp_path / "artifact.metadata").write_text('{"dim": 5}')
    assert read_projection(config) == Projection((Dense(tmp_path, 8, 5, False, "Identity"),), True)


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (("Pooling", "Dense"), {"activation_function": "x.Swish"}, "activation 'Swish'; served"),
        (("Pooling", "Dense"), {"out_features": 0}, "out_features must be a positive integer"),
        (("Pooling", "Dense"), {"in_features": True}, "in_features must be a positive integer"),
        (("Pooling", "Dense"), {"use_residual": True}, "use_residual is not served"),
        (("Dense", "Pooling"), {}, "in front of its pooling"),
        (("Pooling", "Dense", "Dense"), {"out_features": 7}, "do not follow one another"),
        (("Dense", "Pooling", "Dense"), {}, "do not follow one another"),
    ],
)
def test_refusals(tmp_path, names, changes, message) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_projection(write(tmp_path, *names, **changes))


def test_a_folder_lies_within_the_model(tmp_path) -> None:
    config = write(tmp_path, "Transformer", "Pooling", "Dense")
    modules = [{"type": "models.Dense", "path": "../elsewhere"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="lies outside the model"):
        read_projection(config)
