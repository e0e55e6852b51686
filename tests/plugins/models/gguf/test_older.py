"""Older decoders' files, written by another package, give the original checkpoint's tokens."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.plugins.models.conftest import Variant, save_tiny
from tests.plugins.models.gguf.older_files import export
from tests.plugins.models.gguf.test_uneven import read
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens
from tests.plugins.models.test_adapted import SETTINGS, matrices, merge
from tests.plugins.models.test_ling import MIXTURE

from hotshoe import LLM, SamplingParams, TokensPrompt
from hotshoe.errors import CheckpointError

OLDER = [
    *("gpt2", "gpt-bigcode", "gpt-neox", "bloom", "mpt-clipped", "dbrx", "jais2", "glm", "jamba"),
    *("falcon", "falcon-two-norms", "falcon-one-norm"),
]
VARIANTS = {name: BY_NAME[name] for name in OLDER}
VARIANTS["gpt-neox-in-turn"] = Variant("n", "GPTNeoX", {"use_parallel_residual": False})
VARIANTS["bitnet"] = Variant(
    "bitnet", "BitNet", {"hidden_act": "silu", "tie_word_embeddings": True}
)
#: Files do not tell a scale of scores.
MPT = {**BY_NAME["mpt-clipped"].values, "attn_config": {"clip_qkv": 1.5}}
VARIANTS["mpt-clipped"] = replace(BY_NAME["mpt-clipped"], values=MPT)
JAMBA = {**BY_NAME["jamba"].values, "mamba_proj_bias": False}
VARIANTS["jamba"] = replace(BY_NAME["jamba"], values=JAMBA)
VARIANTS["jamba-dense"] = replace(
    BY_NAME["jamba"], name="jamba-dense", values={**JAMBA, "num_experts": 1}
)
#: Architectures whose files look like those of a model of another name, with q, k and v joined.
ALIKE = {
    "baichuan": Variant("baichuan", "Llama", {"num_key_value_heads": 4}),
    "bailingmoe": Variant("bailing", "Qwen2Moe", {**MIXTURE, "norm_topk_prob": True}),
    "codeshell": replace(BY_NAME["starcoder2"], values={}),
    "deepseek": Variant("deepseek", "Qwen2Moe", MIXTURE),
    "maincoder": BY_NAME["hunyuan"],
    "orion": Variant("orion", "StableLm", {"partial_rotary_factor": 1.0}),
    "phi2": BY_NAME["phi"],
    "qwen": Variant("qwen", "Qwen2", {"num_key_value_heads": 4}),
}
QUANTIZED = {"gpt-bigcode": "Q4_1", "bloom": "Q8_0", "falcon-two-norms": "Q5_0", "glm": "Q8_0"}


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    assert_tokens(VARIANTS[name], QUANTIZED.get(name, "F32"), tmp_path, export=export)


@pytest.mark.parametrize("arch", ALIKE)
def test_tokens_of_architectures_that_are_alike(arch: str, tmp_path: Path) -> None:
    assert_tokens(ALIKE[arch], "F32", tmp_path, arch, export)


#: Of files that name four layers.
KEYS: dict[str, Any] = {
    "attention.head_count": 4,
    "attention.layer_norm_epsilon": 1e-5,
    "feed_forward_length": 96,
    "ssm.inner_size": 128,
}


@pytest.mark.parametrize(
    ("arch", "changed", "said"),
    [
        ("starcoder", {"attention.head_count_kv": 2}, "head_count_kv is 2, but must be 1"),
        ("mpt", {"attention.head_count_kv": 2}, "head_count_kv is 2, but is read as 4"),
        ("mpt", {}, "feed_forward_length is 96, but is read as 256"),
        ("phi2", {"block_count": 2**31}, "block_count is 2147483648, but at most 4096 can be"),
        ("gptneox", {"attention.head_count": 99}, "head_count is 99, but there are 64 channels"),
        ("gptneox", {"use_parallel_residual": 1}, "is 1, but must be true or false"),
        ("qwen", {}, "lacks the tensor blk.0.ffn_up.weight"),
        ("jamba", {"attention.head_count_kv": [2, 2, 0, 2]}, "do not come at equal distances"),
    ],
)
def test_bad_values_are_named(
    tmp_path: Path, arch: str, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path, arch, {**KEYS, **changed})


@pytest.mark.parametrize("name", ["gpt2", "gpt-bigcode", "falcon-two-norms", "mpt-clipped"])
def test_adapters_of_the_checkpoint_change_the_file(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    base = save_tiny(variant, tmp_path / "original", random.randrange(2**31))
    path = export(base, variant.family, tmp_path / "m.gguf", lambda name: "F32")
    merge(matrices(base.model), tmp_path / "own")
    with LLM(str(path), **SETTINGS) as llm:
        llm.load_adapter("own", tmp_path / "own")
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, adapter="own")
        [found] = llm.generate([TokensPrompt([9, 3, 7])], params)
    base.assert_greedy([9, 3, 7], found.outputs[0].token_ids)
