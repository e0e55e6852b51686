"""The model of these tests, and engines of it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe import LLM

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


@pytest.fixture
def open_llm(tmp_path: Path) -> Callable[..., LLM]:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    def build(**options: object) -> LLM:
        settings = {"load_format": "dummy", "platform": "cpu", "skip_tokenizer_init": True}
        return LLM(str(tmp_path), **settings, seed=3, **options)

    return build
