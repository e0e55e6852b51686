"""Mixtures' files, written by another package, give the original checkpoint's tokens."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.plugins.models.conftest import HERE, save_tiny
from tests.plugins.models.gguf.conftest import export, of_matrices
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens, experts

from hotshoe import LLM, SamplingParams, TokensPrompt

MIXTURES = [
    *("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granite-moe", "granite-moe-shared", "gpt-oss"),
    *("glm4-moe", "dots1", "ernie4_5-moe", "minimax-m2", "hunyuan-moe"),
    *("llama4-dense-between", "afmoe", "exaone-moe", "phi-moe"),
    *("deepseek-v2-experts", "deepseek-v2-groups", "deepseek-v3-experts"),
]
VARIANTS = {name: BY_NAME[name] for name in MIXTURES}
#: Files do not say where gates are clamped, as all of gpt-oss's are alike.
GPT_OSS = {**BY_NAME["gpt-oss"].values, "swiglu_limit": 7.0}
VARIANTS["gpt-oss"] = replace(BY_NAME["gpt-oss"], values=GPT_OSS)
#: Nor what all of Llama 4's have alike, or the two of them by the number of experts.
BETWEEN = BY_NAME["llama4-dense-between"]
LEFT_OUT = ("floor_scale", "attn_scale", "attention_chunk_size", "no_rope_layer_interval")
LEFT_OUT += ("use_qk_norm", "attention_bias", "layer_types")
LLAMA4 = {k: v for k, v in BETWEEN.values.items() if k not in LEFT_OUT}
VARIANTS["llama4-dense-between"] = replace(BETWEEN, values=LLAMA4)
#: Files of dots.llm1 have no window, which its models do not use.
DOTS = {k: v for k, v in BY_NAME["dots1"].values.items() if "window" not in k}
VARIANTS["dots1"] = replace(BY_NAME["dots1"], values={**DOTS, "sliding_window": None})
#: Stretched, with a temperature of scores.
V3 = BY_NAME["deepseek-v3-experts"]
STRETCHED = {**V3.values, "rope_parameters": BY_NAME["deepseek-v3"].values["rope_parameters"]}
VARIANTS["deepseek-v3-experts"] = replace(V3, values=STRETCHED)
#: Nor the noise of Phi's router, or which of AFMoE's layers have windows: three of four do.
PHI_MOE = {k: v for k, v in BY_NAME["phi-moe"].values.items() if "noise" not in k}
VARIANTS["phi-moe"] = replace(BY_NAME["phi-moe"], values=PHI_MOE)
AFMOE = {k: v for k, v in BY_NAME["afmoe"].values.items() if k != "layer_types"}
VARIANTS["afmoe"] = replace(BY_NAME["afmoe"], values={**AFMOE, "num_hidden_layers": 5})
#: Those whose matrices are quantized; rows of the others are no multiple of a block.
QUANTIZED = {"mixtral": "Q4_1", "olmoe": "Q8_0", "gpt-oss": "MXFP4"}


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    assert_tokens(VARIANTS[name], QUANTIZED.get(name, "F32"), tmp_path)


def test_tokens_of_ling(tmp_path: Path) -> None:
    variant = VARIANTS["glm4-moe"]
    values = {**variant.values, "use_qk_norm": True}
    assert_tokens(replace(variant, values=values), "F32", tmp_path, "bailingmoe2")


def test_tokens_of_a_mixture_that_sees(tmp_path: Path) -> None:
    assert_tokens(VARIANTS["qwen3-moe"], "F32", tmp_path, "qwen3vlmoe")


def test_experts_of_which_one_matrix_is_plain_are_unpacked(tmp_path: Path) -> None:
    checkpoint = save_tiny(BY_NAME["mixtral"], tmp_path / "original", random.randrange(2**31))
    kinds = of_matrices("Q8_0")
    path = tmp_path / "mixed.gguf"
    export(checkpoint, "Mixtral", path, lambda n: "F16" if "down_exps" in n else kinds(n))
    options = {"platform": HERE, "dtype": "float32", "max_num_seqs": 2}
    with LLM(str(path), kv_cache_memory_bytes=2**22, **options) as llm:
        [found] = llm.generate([TokensPrompt([5, 6])], SamplingParams(max_tokens=3))
        assert "int8" not in experts(llm)
    assert found.outputs[0].token_ids
