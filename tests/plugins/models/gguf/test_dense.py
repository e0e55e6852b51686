"""Dense families' files, written by another package, give the original checkpoint's tokens."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens

DENSE = [
    *("llama-tied-gqa", "llama-llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"),
    *("phi3-partial-window", "phi3-longrope-short", "phi3-longrope-long", "granite", "smollm3"),
    "llama-linear",
]
VARIANTS = {name: BY_NAME[name] for name in DENSE}
#: Files do not say which layers rotate: three of four do.
VARIANTS["smollm3"] = replace(BY_NAME["smollm3"], values={"num_hidden_layers": 5})
#: Those whose matrices are quantized; rows of the others are no multiple of a block.
QUANTIZED = {"llama-tied-gqa": "Q8_0", "qwen2": "Q4_0", "gemma2": "Q5_1", "granite": "Q4_1"}


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    assert_tokens(VARIANTS[name], QUANTIZED.get(name, "F32"), tmp_path)
