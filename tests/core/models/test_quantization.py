"""The description of a checkpoint's quantization is found wherever writers put it."""

import json
from pathlib import Path

import pytest

from hotshoe.errors import CheckpointError
from hotshoe.models import ModelConfig
from hotshoe.models.quantization import stored_quantization

AWQ = {"quant_method": "awq", "bits": 4}


def model(path: Path, **values: object) -> ModelConfig:
    (path / "config.json").write_text(json.dumps({"architectures": ["A"], **values}))
    return ModelConfig.load(path)


@pytest.mark.parametrize(
    "values",
    [
        {"quantization_config": AWQ},
        {"compression_config": AWQ},
        {"text_config": {"quantization_config": AWQ}},
        {"quantization_config": AWQ, "text_config": {"quantization_config": AWQ}},
    ],
)
def test_places(tmp_path: Path, values: dict) -> None:
    assert stored_quantization(model(tmp_path, **values)) == AWQ


def test_none(tmp_path: Path) -> None:
    assert stored_quantization(model(tmp_path, quantization_config=None)) is None


MLX = {"bits": 4, "group_size": 64}


@pytest.mark.parametrize(
    "values",
    [
        {"quantization": MLX},
        {"quantization": MLX, "quantization_config": MLX},
        {"quantization_config": MLX},
        {"quantization": MLX, "quantization_config": AWQ},  # of the files that were converted
        {"quantization": MLX, "text_config": {"quantization_config": MLX}},
    ],
)
def test_files_of_mlx(tmp_path: Path, values: dict) -> None:
    found = stored_quantization(model(tmp_path, model_type="llama", **values))
    assert found == MLX | {"quant_method": "mlx", "model_type": "llama"}


def test_files_of_mlx_described_twice(tmp_path: Path) -> None:
    both = {"quantization": MLX, "quantization_config": MLX | {"bits": 8}}
    with pytest.raises(CheckpointError, match="twice, each time otherwise: in quantization and"):
        stored_quantization(model(tmp_path, **both))


def test_the_file_of_modelopt(tmp_path: Path) -> None:
    inner = {"quant_algo": "FP8"}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": inner}))
    assert stored_quantization(model(tmp_path)) == {"quant_method": "modelopt", **inner}


def test_an_object_of_modelopt_within_config(tmp_path: Path) -> None:
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    for outer in ({"quant_method": "modelopt", "quant_algo": "FP8"}, {"producer": {"name": "x"}}):
        found = stored_quantization(
            model(tmp_path, quantization_config=outer | {"quantization": inner})
        )
        assert found is not None
        assert {"quant_method": "modelopt", **inner}.items() <= found.items()
    twice = {"quant_method": "modelopt", "quant_algo": "NVFP4", "quantization": inner}
    with pytest.raises(CheckpointError, match="quant_algo 'NVFP4', and quantization within it 'F"):
        stored_quantization(model(tmp_path, quantization_config=twice))


NVFP4 = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16}


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"quant_algo": "FP8"}, "quant_algo"),
        ({"kv_cache_quant_algo": None}, "kv_cache_quant_algo"),
        ({"kv_cache_quant_algo": "NVFP4"}, "kv_cache_quant_algo"),
        ({"group_size": 32}, "group_size"),
    ],
)
def test_files_that_contradict_each_other(tmp_path: Path, other: dict, key: str) -> None:
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": NVFP4 | other}))
    here = {"quant_method": "modelopt", **NVFP4}
    for values in ({"quantization_config": here}, {"text_config": {"quantization_config": here}}):
        words = rf"{tmp_path / 'config.json'} gives {key} .*{tmp_path / 'hf_quant_config.json'} "
        with pytest.raises(CheckpointError, match=words):
            stored_quantization(model(tmp_path, **values))


def test_a_file_of_modelopt_beside_another_method(tmp_path: Path) -> None:
    file = tmp_path / "hf_quant_config.json"
    found = model(tmp_path, quantization_config=AWQ)
    for said in ({}, {"quant_algo": None, "kv_cache_quant_algo": "FP8"}):
        file.write_text(json.dumps({"quantization": said}))
        assert stored_quantization(found) == AWQ
    file.write_text(json.dumps({"quantization": NVFP4}))
    with pytest.raises(
        CheckpointError, match=r"quant_method 'awq', and .* of another, 'NVFP4'; co"
    ):
        stored_quantization(found)


def test_files_that_agree_in_what_both_say(tmp_path: Path) -> None:
    said = {"quantization": NVFP4 | {"exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    for here in ({"quant_algo": "nvfp4"}, NVFP4, {}):
        config = {"quant_method": "modelopt", **here}
        assert stored_quantization(model(tmp_path, quantization_config=config)) == config


@pytest.mark.parametrize("bad", ["awq", 4, [], {}, {"bits": 4}, {"quant_method": 3}])
def test_what_names_no_method(tmp_path: Path, bad: object) -> None:
    with pytest.raises(CheckpointError, match="must be an object with a quant_method"):
        stored_quantization(model(tmp_path, quantization_config=bad))


def test_what_some_writers_put_beside_it(tmp_path: Path) -> None:
    beside = model(tmp_path, quantization_config=AWQ, expert_dtype="fp4")
    assert stored_quantization(beside) == {**AWQ, "expert_dtype": "fp4"}
    assert stored_quantization(model(tmp_path, expert_dtype="fp4")) is None
    inside = {**AWQ, "expert_dtype": "fp8"}
    assert (
        stored_quantization(model(tmp_path, quantization_config=inside, expert_dtype="fp4"))
        == inside
    )
