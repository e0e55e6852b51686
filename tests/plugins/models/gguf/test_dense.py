"""Dense families' files, written by another package, give the original checkpoint's tokens."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.models.conftest import save_tiny
from tests.plugins.models.gguf.conftest import export
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf import dense
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata

DENSE = [
    *("llama-tied-gqa", "llama-llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"),
    *("phi3-partial-window", "phi3-longrope-short", "phi3-longrope-long", "granite", "smollm3"),
    *("llama-linear", "arcee-biases", "cohere", "cohere-norms-of-heads", "cohere2", "ernie4_5"),
    *("exaone4", "exaone4-full", "gemma", "glm4", "hunyuan", "ministral3"),
    *("nemotron", "olmo2", "olmo3", "seed-oss", "stablelm"),
    *("stablelm-parallel", "starcoder2", "apertus", "phi"),
]
VARIANTS = {name: BY_NAME[name] for name in DENSE}
#: Files do not say which layers rotate: three of four do.
VARIANTS["smollm3"] = replace(BY_NAME["smollm3"], values={"num_hidden_layers": 5})
#: Nor which have windows in Cohere's: three of four do.
COHERE2 = {**BY_NAME["cohere2"].values, "num_hidden_layers": 5}
del COHERE2["sliding_window_pattern"]
VARIANTS["cohere2"] = replace(BY_NAME["cohere2"], values=COHERE2)
#: Architectures whose files look like those of a model of another name.
ALIKE = {"qwen2vl": "qwen2", "qwen3vl": "qwen3", "internlm2": "llama-tied-gqa"}
ALIKE |= {"xverse": "llama-tied-gqa"}
ALIKE |= {"pangu-embedded": "llama-llama3"}
ALIKE |= {"exaone": "llama-llama3", "minicpm": "granite", "mistral3": "mistral"}
#: Those whose matrices are quantized; rows of the others are no multiple of a block.
QUANTIZED = {"llama-tied-gqa": "Q8_0", "qwen2": "Q4_0", "gemma2": "Q5_1", "granite": "Q4_1"}


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    assert_tokens(VARIANTS[name], QUANTIZED.get(name, "F32"), tmp_path)


@pytest.mark.parametrize("arch", ALIKE)
def test_tokens_of_architectures_that_are_alike(arch: str, tmp_path: Path) -> None:
    variant = VARIANTS[ALIKE[arch]]
    if arch == "minicpm":  # which has no scale of scores
        variant = replace(variant, values={**variant.values, "attention_multiplier": 0.25})
    assert_tokens(variant, "F32", tmp_path, arch)


def test_heads_with_norms_are_refused_where_files_have_them_otherwise(tmp_path: Path) -> None:
    variant = BY_NAME["stablelm"]
    checkpoint = save_tiny(variant, tmp_path / "original", random.randrange(2**31))
    path = tmp_path / "model.gguf"
    export(checkpoint, variant.family, path, lambda name: "F32")
    meta = Metadata([Header(path)])
    assert dense.stablelm(meta)["use_parallel_residual"] is False
    meta.tensors["blk.0.attn_q_norm.weight"] = meta.tensors["output_norm.weight"]
    with pytest.raises(CheckpointError, match="stablelm', which is not read with norms of heads"):
        dense.stablelm(meta)
