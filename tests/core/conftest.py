"""A model directory without weights, and plugins that offer the null platform alone."""

import importlib
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hotshoe.plugins import PluginManager
from hotshoe.plugins.manager import EntryPoint

EOS = 255


@pytest.fixture
def plugins() -> PluginManager:
    def load() -> object:
        return importlib.import_module("hotshoe.builtin.plugin")

    return PluginManager([EntryPoint("core", "hotshoe", "0", load)])


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer: token id = order of the byte in the byte-level alphabet."""
    path = tmp_path_factory.mktemp("model")
    config = {"architectures": ["Any"], "max_position_embeddings": 64, "eos_token_id": EOS}
    (path / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return path
