"""Each family's file, written by another package, gives the original checkpoint's tokens."""

import random
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tests.plugins.models.conftest import VARIANTS, VOCAB, save_tiny
from tests.plugins.models.gguf.conftest import ARCHS, export, of_matrices

from hotshoe import LLM, SamplingParams, TokensPrompt

TESTED = [
    *("llama-tied-gqa", "llama-llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"),
    *("phi3-partial-window", "phi3-longrope-short", "phi3-longrope-long", "granite", "smollm3"),
    "llama-linear",
    *("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "granite-moe", "granite-moe-shared", "gpt-oss"),
    *("glm4-moe", "dots1", "ernie4_5-moe", "minimax-m2", "hunyuan-moe"),
    "llama4-dense-between",
    *("deepseek-v2-experts", "deepseek-v2-groups", "deepseek-v3-experts"),
]
BY_NAME = {variant.name: variant for variant in VARIANTS}
#: Files do not say which layers rotate: three of four do.
BY_NAME["smollm3"] = replace(BY_NAME["smollm3"], values={"num_hidden_layers": 5})
#: Nor where gates are clamped, as all of gpt-oss's are alike.
GPT_OSS = {**BY_NAME["gpt-oss"].values, "swiglu_limit": 7.0}
BY_NAME["gpt-oss"] = replace(BY_NAME["gpt-oss"], values=GPT_OSS)
#: Nor what all of Llama 4's have alike, or the two of them by the number of experts.
BETWEEN = BY_NAME["llama4-dense-between"]
LEFT_OUT = ("floor_scale", "attn_scale", "attention_chunk_size", "no_rope_layer_interval")
LEFT_OUT += ("use_qk_norm", "attention_bias", "layer_types")
LLAMA4 = {k: v for k, v in BETWEEN.values.items() if k not in LEFT_OUT}
BY_NAME["llama4-dense-between"] = replace(BETWEEN, values=LLAMA4)
#: Files of dots.llm1 have no window, which its models do not use.
DOTS = {k: v for k, v in BY_NAME["dots1"].values.items() if "window" not in k}
BY_NAME["dots1"] = replace(BY_NAME["dots1"], values={**DOTS, "sliding_window": None})
#: Stretched, with a temperature of scores.
V3 = BY_NAME["deepseek-v3-experts"]
STRETCHED = {**V3.values, "rope_parameters": BY_NAME["deepseek-v3"].values["rope_parameters"]}
BY_NAME["deepseek-v3-experts"] = replace(V3, values=STRETCHED)
#: Those whose matrices are quantized; rows of the others are no multiple of a block.
QUANTIZED = {"llama-tied-gqa": "Q8_0", "qwen2": "Q4_0", "gemma2": "Q5_1", "granite": "Q4_1"}
QUANTIZED |= {"mixtral": "Q4_1", "olmoe": "Q8_0", "gpt-oss": "MXFP4"}
#: Matrices that converters never quantize.
PLAIN = ("mlp.gate.weight", "router", "_bias")
COUNT = 12
#: How specifications spell what experts of these types are held as.
FORMS = {"MXFP4": "fp4_e2m1", "Q4_1": "int4", "Q8_0": "int8"}


def experts(llm: LLM) -> str:
    """Return the specification of experts; "" where there are none."""
    return " ".join(d.spec for d in llm.engine.info.decisions if d.slot == "moe")


def round_trip(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    known = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(tensor.numpy().astype(np.float32), known)
    return torch.from_numpy(gguf.quants.dequantize(packed, known).reshape(tensor.shape))


@pytest.mark.parametrize("name", TESTED)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    variant, kind = BY_NAME[name], QUANTIZED.get(name, "F32")
    checkpoint = save_tiny(variant, tmp_path / "original", random.randrange(2**31))
    export(checkpoint, variant.family, tmp_path / f"{name}-{kind}.gguf", of_matrices(kind))
    with torch.no_grad():
        for called, weight in checkpoint.model.named_parameters():
            if weight.dim() > 1 and kind != "F32" and not any(p in called for p in PLAIN):
                turned = variant.family == "GptOss" and "experts" in called
                rows = weight.transpose(1, 2).contiguous() if turned else weight
                made = round_trip(rows, kind)
                weight.copy_(made.transpose(1, 2) if turned else made)
    prompt = [random.randrange(3, VOCAB) for _ in range(9)]
    options = {"dtype": "float32", "max_num_seqs": 2, "kv_cache_memory_bytes": 2**22}
    model = str(tmp_path / f"{name}-{kind}.gguf")
    with LLM(model, max_model_len=variant.max_model_len, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
        [found] = llm.generate([TokensPrompt(prompt)], params)
        held = experts(llm)
    assert not held or FORMS.get(kind, "") in held
    written = found.outputs[0].token_ids
    assert len(written) == COUNT
    checkpoint.assert_greedy(prompt, written, variant.max_model_len)


def test_experts_of_which_one_matrix_is_plain_are_unpacked(tmp_path: Path) -> None:
    checkpoint = save_tiny(BY_NAME["mixtral"], tmp_path / "original", random.randrange(2**31))
    kinds = of_matrices("Q8_0")
    path = tmp_path / "mixed.gguf"
    export(checkpoint, "Mixtral", path, lambda n: "F16" if "down_exps" in n else kinds(n))
    with LLM(str(path), dtype="float32", max_num_seqs=2, kv_cache_memory_bytes=2**22) as llm:
        [found] = llm.generate([TokensPrompt([5, 6])], SamplingParams(max_tokens=3))
        assert "int8" not in experts(llm)
    assert found.outputs[0].token_ids


def test_every_family_is_tested() -> None:
    assert {BY_NAME[name].family for name in TESTED} == set(ARCHS)
