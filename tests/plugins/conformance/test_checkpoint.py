"""Tiny checkpoints are real ones."""

import pytest
import torch
from safetensors.torch import load_file

from hotshoe import LLM
from hotshoe.slots import COMPOSED, REFERENCE
from hotshoe_conformance.checkpoint import MODELS, write_model, write_safetensors
from hotshoe_conformance.host import PLATFORM, host_plugins


def test_files_that_others_can_read(tmp_path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(7), "empty": torch.empty(0, 2)}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    found = load_file(tmp_path / "x.safetensors")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("name", MODELS)
def test_models_load(tmp_path, name: str) -> None:
    plugins = host_plugins()
    path = write_model(name, tmp_path / name, plugins, seed=1)
    with LLM(str(path), platform=PLATFORM, plugins=plugins, skip_tokenizer_init=True) as llm:
        assert llm.engine.core.info.vocab_size == MODELS[name]["vocab_size"]
        assert {decision.chosen for decision in llm.decisions} == {REFERENCE, COMPOSED}
