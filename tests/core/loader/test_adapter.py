"""Adapter files; refusals of single entries are in tests/e2e/test_adapters.py."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hotshoe.errors import CheckpointError
from hotshoe.loader.adapter import read_adapter


@pytest.mark.parametrize(
    ("layer", "served"),
    [(1, True), (0, True), (2, False)],  # PEFT 0.21 takes the first number, 0.19 the last
)
@pytest.mark.parametrize("more", [{}, {"layers_pattern": ["layers", "experts"]}])
def test_a_matrix_of_an_expert_has_the_number_of_its_layer(
    tmp_path: Path, layer: int, served: bool, more: dict[str, object]
) -> None:
    matrix = "model.layers.1.mlp.experts.0.up_proj"
    halves = {
        f"base_model.model.{matrix}.lora_{half}.weight": torch.randn(2, 2) for half in ("A", "B")
    }
    save_file(halves, tmp_path / "adapter_model.safetensors")
    config = {"r": 2, "layers_to_transform": [layer], **more}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    if served:
        assert read_adapter(tmp_path).keys() == {matrix}
        return
    with pytest.raises(CheckpointError, match=rf"layers_to_transform is \[{layer}\]"):
        read_adapter(tmp_path)
