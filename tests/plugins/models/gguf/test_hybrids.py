"""Hybrids' files, written by another package, give the original checkpoint's tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.plugins.models.conftest import HERE, describe, save_tiny
from tests.plugins.models.gguf import test_uneven
from tests.plugins.models.gguf.conftest import write
from tests.plugins.models.gguf.hybrid_files import ARCHS, export, keys_of, tensors_of
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens

from hotshoe import LLM
from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.families import config_of
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata
from hotshoe_models.gguf.model import FORMAT

HYBRIDS = [
    *("qwen3-next", "qwen3.5", "qwen3.5-moe", "lfm2", "lfm2-moe"),
    *("granite-hybrid", "granite-hybrid-dense", "falcon-h1", "falcon-h1-normed-last", "bamba"),
    *("mamba", "mamba-biases", "falcon-mamba", "mamba2", "mamba2-biases"),
    *("nemotron-h", "nemotron-h-experts", "nemotron-h-latent-experts"),
    *("gemma4", "gemma4-experts", "gemma3n", "kimi-linear"),
]
VARIANTS = {name: BY_NAME[name] for name in HYBRIDS}
#: With blocks of numbers that lie in one head of values each.
QWEN35 = {**BY_NAME["qwen3.5"].values, "linear_value_head_dim": 32}
VARIANTS["qwen3.5"] = replace(BY_NAME["qwen3.5"], values=QWEN35)
#: Files do not have a factor of experts, as all have 1.
MOE = {k: v for k, v in BY_NAME["lfm2-moe"].values.items() if k != "routed_scaling_factor"}
VARIANTS["lfm2-moe"] = replace(BY_NAME["lfm2-moe"], values=MOE)
#: Nor where q and k of Granite's hybrids turn, as none does.
DENSE = {k: v for k, v in BY_NAME["granite-hybrid-dense"].values.items() if "position" not in k}
VARIANTS["granite-hybrid-dense"] = replace(BY_NAME["granite-hybrid-dense"], values=DENSE)
#: Nor an MLP beside experts, which no model has.
LATENT = {**BY_NAME["nemotron-h-latent-experts"].values, "hybrid_override_pattern": "ME*E"}
VARIANTS["nemotron-h-latent-experts"] = replace(BY_NAME["nemotron-h-latent-experts"], values=LATENT)
#: As 31B is, whose full layers have keys for values.
ALIKE = {"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_kv_shared_layers": 0}
ALIKE |= {"use_double_wide_mlp": False}
VARIANTS["gemma4-alike"] = replace(
    BY_NAME["gemma4"], name="gemma4-alike", values={**BY_NAME["gemma4"].values, **ALIKE}
)
#: With blocks in the experts' second matrices.
MOE4 = {**BY_NAME["gemma4-experts"].values, "moe_intermediate_size": 64}
MOE4["per_layer_config"] = {i: {"head_dim": 24, "num_key_value_heads": 1} for i in "13"}
VARIANTS["gemma4-experts"] = replace(BY_NAME["gemma4-experts"], values=MOE4)
QUANTIZED = {"gemma4-alike": "Q8_0", "gemma4-experts": "Q8_0", "lfm2": "Q4_1", "qwen3.5": "Q8_0"}


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    arch = "nemotron_h_moe" if name.startswith("nemotron") and "experts" in name else ""
    assert_tokens(VARIANTS[name], QUANTIZED.get(name, "F32"), tmp_path, arch, export)


def test_a_factor_of_logits_that_a_file_leaves_out_is_asked_for(tmp_path: Path) -> None:
    """Which is the model's, divided by that of embeddings, as these hold theirs already."""
    variant = VARIANTS["falcon-h1"]
    variant = replace(variant, values={**variant.values, "tie_word_embeddings": True})
    factor = {"lm_head_multiplier": 0.6 / 1.7}
    assert_tokens(variant, "F32", tmp_path, export=export, hf_overrides=factor)
    path = str(tmp_path / "falcon-h1-F32.gguf")
    with pytest.raises(CheckpointError, match="which a GGUF file without output"):
        LLM(path, platform=HERE, dtype="float32", kv_cache_memory_bytes=2**22)


def test_every_family_is_tested() -> None:
    tested = [*VARIANTS.values(), *test_uneven.VARIANTS.values()]
    assert {variant.family for variant in tested} == set(ARCHS)


def test_a_layer_that_predicts_further_tokens_comes_last(tmp_path: Path) -> None:
    checkpoint = save_tiny(VARIANTS["qwen3.5"], tmp_path / "original", 0)
    model = checkpoint.model
    tensors, arch = tensors_of("Qwen3_5", model), "qwen35"
    rng, size, layers = np.random.default_rng(), model.config.hidden_size, 3
    own = {name: rng.normal(size=(size,)) for name in ("enorm", "hnorm", "shared_head_norm")}
    own["eh_proj"] = rng.normal(size=(size, 2 * size))
    names = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
    names |= {"shared_head_norm": "norm"}
    wanted = {f"mtp.{names[part]}.weight": own[part] for part in names}
    for part in names:
        added = own[part] + (part.endswith("norm"))
        tensors[f"blk.{layers}.nextn.{part}.weight"] = added.astype(np.float32)
    for name in [name for name in tensors if name.startswith("blk.1.")]:
        tensors[name.replace("blk.1.", f"blk.{layers}.")] = tensors[name]
    keys = keys_of("Qwen3_5", model.config)
    keys |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    opened = FORMAT.open(write(tmp_path / "m.gguf", arch, keys, tensors))
    config, source = opened.config(), opened.weights(torch.float32)
    assert config["num_hidden_layers"] == layers and config["mtp_num_hidden_layers"] == 1
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    layer = "model.layers.1."
    wanted |= {n.replace(layer, "mtp.layers.0."): t for n, t in state.items() if layer in n}
    wanted |= state
    del wanted["lm_head.weight"]  # tied
    assert set(source.names()) == set(wanted)
    for name, tensor in wanted.items():
        if "out_proj" not in name:  # whose columns the model reads as they are
            np.testing.assert_allclose(source.tensor(name).numpy(), tensor, atol=1e-5)


@pytest.fixture
def config(tmp_path: Path):
    """Returns the configuration of a file without tensors whose keys are changed."""

    def made(name: str, **changed: Any) -> dict[str, Any]:
        variant = VARIANTS[name]
        _, config_name, values = describe(variant)
        keys = keys_of(variant.family, getattr(transformers, config_name)(**values))
        arch = ARCHS[variant.family]
        keys |= {f"{arch}.{key.replace('__', '.')}": value for key, value in changed.items()}
        keys = {key: value for key, value in keys.items() if value is not None}
        names = ("token_embd", "per_layer_token_embd", "blk.0.laurel_l")
        tensors = {f"{name}.weight": np.ones((256, 64), np.float32) for name in names}
        if experts := keys.get(f"{arch}.expert_count"):
            tensors["blk.1.ffn_up_exps.weight"] = np.ones((experts, 40, 64), np.float32)
        return config_of(Metadata([Header(write(tmp_path / "m.gguf", arch, keys, tensors))]))

    return made


def test_a_mixture_need_not_tell_of_an_mlp(config) -> None:
    assert "intermediate_size" in config("qwen3.5-moe", feed_forward_length=None)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("qwen3.5", {"ssm__inner_size": 250}, "qwen35.ssm.inner_size is 250, but must be a multi"),
        ("qwen3.5", {"ssm__group_count": 3}, "ssm.time_step_rank is 8, but must be a multiple of"),
        ("qwen3.5", {"ssm__state_size": None}, "qwen35.ssm.state_size is missing, but must be"),
        ("qwen3.5", {"ssm__conv_kernel": "x"}, "qwen35.ssm.conv_kernel is 'x', but must be"),
        ("lfm2", {"attention__head_count_kv": [0, 2]}, r"kv is \[0, 2\], but must be sizes of 3"),
        ("lfm2", {"attention__head_count_kv": [0, 0, 0]}, "head_count_kv is .*, but must be sizes"),
        ("lfm2", {"shortconv__l_cache": None}, "lfm2.shortconv.l_cache is missing"),
        ("lfm2-moe", {"expert_gating_func": 1}, "expert_gating_func is 1, is read as 2"),
        ("granite-hybrid", {"ssm__inner_size": 100}, "inner_size is 100, but must be a multiple"),
        ("granite-hybrid-dense", {"attention__scale": None}, "attention.scale is missing"),
        ("mamba2", {"ssm__group_count": "x"}, "mamba2.ssm.group_count is 'x', but must be"),
        ("mamba", {"ssm__time_step_rank": None}, "mamba.ssm.time_step_rank is missing"),
        ("mamba", {"ssm__dt_b_c_rms": 1}, "mamba.ssm.dt_b_c_rms is 1, but must be true or false"),
        ("mamba2", {"ssm__inner_size": 130}, "mamba2.ssm.inner_size is 130, but must be a mult"),
        ("nemotron-h", {"feed_forward_length": [1, 2]}, r"length is \[1, 2\], but must be sizes"),
        ("gemma4", {"attention__sliding_window_pattern": [True]}, "must say it of"),
        ("gemma4", {"feed_forward_length": [96, 96, 96, 50]}, "but must be one size, and in"),
        ("gemma4", {"attention__sliding_window": None}, "gemma4.attention.sliding_window is mis"),
        ("gemma4", {"embedding_length_per_layer_input": 0}, "key_length is 24, but rope_freqs"),
        ("gemma3n", {"activation_sparsity_scale": [0.5]}, "but must be quantiles for 4 layers"),
        ("gemma3n", {"altup__num_inputs": None}, "gemma3n.altup.num_inputs is missing"),
        ("qwen3.5", {"nextn_predict_layers": 3}, "nextn_predict_layers is 3, but must leave lay"),
    ],
)
def test_bad_values_are_named(config, name: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        config(name, **changed)
