"""Files of models whose layers differ, written by another package, give the checkpoint's tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.plugins.models.conftest import Variant
from tests.plugins.models.gguf.conftest import vocabulary, write
from tests.plugins.models.gguf.hybrid_files import ARCHS, common, export, keys_of, tensors_of
from tests.plugins.models.gguf.older_files import joined
from tests.plugins.models.gguf.uneven_files import deci
from tests.plugins.models.gguf.written import BY_NAME, assert_tokens

from hotshoe.errors import CheckpointError
from hotshoe_models.gguf.families import config_of
from hotshoe_models.gguf.header import Header
from hotshoe_models.gguf.metadata import Metadata

VARIANTS = {name: BY_NAME[name] for name in ("mistral4", "mimo-v2", "step3", "olmo")}
VARIANTS |= {name: BY_NAME[name] for name in ("mellum", "laguna", "hunyuan3", "youtu")}
#: Files do not say where gates are clamped.
M3 = {k: v for k, v in BY_NAME["minimax-m3"].values.items() if k != "swiglu_limit"}
VARIANTS["minimax-m3"] = replace(BY_NAME["minimax-m3"], values=M3)
#: Without layers of windows, and with a gate for each channel.
VARIANTS["laguna-gates-of-channels"] = BY_NAME["laguna-gates-of-channels"]
#: Layers without experts come first in files.
GLM = {**BY_NAME["glm-moe-dsa"].values, "mlp_layer_types": ["dense", "sparse", "sparse"]}
VARIANTS["glm-moe-dsa"] = replace(
    BY_NAME["glm-moe-dsa"], values={**GLM, "first_k_dense_replace": 1}
)
V32 = {**BY_NAME["deepseek-v3.2-experts"].values, "attention_bias": False}
VARIANTS["deepseek-v3.2"] = replace(BY_NAME["deepseek-v3.2-experts"], values=V32)
#: Files leave out factors, which all models have alike.
FACTORS = ("scale_emb", "dim_model_base")
MINICPM3 = {k: v for k, v in BY_NAME["minicpm3"].values.items() if k not in FACTORS}
VARIANTS["minicpm3"] = replace(BY_NAME["minicpm3"], values=MINICPM3)


@pytest.mark.parametrize("name", VARIANTS)
def test_tokens_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    options = {"block_size": 16} if VARIANTS[name].groups_tokens else {}
    assert_tokens(VARIANTS[name], "F32", tmp_path, export=export, **options)


def test_tokens_of_mistral_large(tmp_path: Path) -> None:
    assert_tokens(VARIANTS["mistral4"], "F32", tmp_path, "deepseek2", export)


def joined_file(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint with q, k and v of each layer in one matrix."""
    config, arch = checkpoint.model.config, ARCHS[family]
    tensors = joined(tensors_of(family, checkpoint.model))
    return write(path, arch, keys_of(family, config), tensors, kind)


def test_tokens_of_q_k_and_v_in_one_matrix(tmp_path: Path) -> None:
    assert_tokens(VARIANTS["mimo-v2"], "F32", tmp_path, export=joined_file)


#: Which layer those that predict further tokens are like, by the name in files.
LIKE = {"step35": 0, "mimo2": 1, "glm-dsa": 2, "hy_v3": 2}


def further_file(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint with one more layer, which predicts further tokens."""
    config, arch = checkpoint.model.config.get_text_config(), ARCHS[family]
    tensors, like = tensors_of(family, checkpoint.model), LIKE[arch]
    own, size = f"blk.{config.num_hidden_layers}.", config.hidden_size
    first = f"blk.{like}."
    tensors |= {n.replace(first, own): t for n, t in tensors.items() if n.startswith(first)}
    parts = {"eh_proj": (size, 2 * size)}
    parts |= dict.fromkeys(("enorm", "hnorm", "shared_head_norm"), (size,))
    tensors |= {f"{own}nextn.{n}.weight": np.ones(s, np.float32) for n, s in parts.items()}
    keys = keys_of(family, config)
    for key, value in keys.items():
        if key.startswith(arch) and isinstance(value, list):
            keys[key] = [*value, value[like]]
    keys |= {f"{arch}.block_count": config.num_hidden_layers + 1}
    return write(path, arch, keys | {f"{arch}.nextn_predict_layers": 1}, tensors, kind)


@pytest.mark.parametrize("name", ["mimo-v2", "step3", "glm-moe-dsa", "hunyuan3"])
def test_layers_that_predict_further_tokens_come_last(name: str, tmp_path: Path) -> None:
    assert_tokens(VARIANTS[name], "F32", tmp_path, export=further_file)


#: Heads, kv heads and channels of each layer.
SIZES = [(4, 2, 96), (0, 0, 96), (4, 1, 40), (4, 2, 0), (4, 2, 96)]


def deci_file(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a llama's checkpoint as one of layers that lack parts, which add nothing in both."""
    model, tensors = checkpoint.model, {}
    layers, head_dim = model.model.layers, model.config.head_dim
    with torch.no_grad():
        for layer, (heads, shared, size) in zip(layers, SIZES, strict=True):
            layer.mlp.down_proj.weight[:, size:] = 0
            if not heads:
                layer.self_attn.o_proj.weight.zero_()
            if shared == 1:
                for part in (layer.self_attn.k_proj, layer.self_attn.v_proj):
                    part.weight[head_dim:] = part.weight[:head_dim]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DECI, len(SIZES))
    for name, tensor in model.state_dict().items():
        found, number = tensor.numpy(), name.removeprefix("model.layers.").partition(".")[0]
        heads, shared, size = SIZES[int(number)] if number.isdecimal() else (1, 1, 1)
        if not heads and ("self_attn" in name or "input_layernorm" in name):
            continue
        if not size and ("mlp" in name or "post_attention" in name):
            continue
        if "k_proj" in name or "v_proj" in name:
            found = found[: shared * head_dim]
        if "mlp" in name:
            found = found[:, :size] if "down_proj" in name else found[:size]
        called = names.get_name(name, try_suffixes=(".weight",))
        tensors[called] = np.ascontiguousarray(deci(name, found, heads, shared))
    heads, shared, inner = map(list, zip(*SIZES, strict=True))
    keys = {
        **common(model.config),
        "attention.head_count": heads,
        "attention.head_count_kv": shared,
        "feed_forward_length": inner,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
    }
    keys = {f"deci.{key}": value for key, value in keys.items()}
    return write(path, "deci", keys | vocabulary(model.config.vocab_size), tensors, kind)


def test_tokens_of_layers_that_lack_parts(tmp_path: Path) -> None:
    values = {"num_hidden_layers": len(SIZES), "head_dim": 16}
    assert_tokens(Variant("deci", "Llama", values), "F32", tmp_path, export=deci_file)


#: Of files that name four layers.
SLIDES = [False, True, True, False]
DECI = {
    "attention.head_count": [4, 4, 0, 4],
    "attention.head_count_kv": [2, 1, 0, 2],
    "feed_forward_length": [96, 0, 96, 96],
    "attention.key_length": 16,
}
STEP = {
    "attention.sliding_window_pattern": SLIDES,
    "attention.head_count": [4, 8, 8, 4],
    "attention.head_count_kv": [2, 2, 2, 2],
    "attention.key_length": 16,
    "attention.sliding_window": 6,
    "expert_count": 6,
    "expert_used_count": 2,
    "expert_feed_forward_length": 40,
    "expert_shared_feed_forward_length": 40,
    "feed_forward_length": 96,
}
MISTRAL = {
    "attention.head_count": 4,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
    "feed_forward_length": 96,
    "expert_count": 6,
}
MIMO = {**STEP, "attention.head_count": 4, "attention.value_length": 12}


def read(path: Path, arch: str, keys: dict[str, Any], *tensors: str) -> dict[str, Any]:
    """Return the configuration of a file without most of its tensors."""
    keys = {
        "block_count": 4,
        "embedding_length": 64,
        "context_length": 64,
        "attention.layer_norm_rms_epsilon": 1e-5,
        **keys,
    }
    shapes = {"token_embd.weight": (256, 64)} | dict.fromkeys(tensors, (6, 64))
    shapes |= {"blk.1.ffn_up_exps.weight": (6, 40, 64)} if "expert_count" in keys else {}
    found = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    written = {f"{arch}.{key}": value for key, value in keys.items()} | vocabulary(256)
    return config_of(Metadata([Header(write(path / "m.gguf", arch, written, found))]))


def test_layers_that_predict_further_tokens_have_entries_of_their_own(tmp_path: Path) -> None:
    further = {**STEP, "nextn_predict_layers": 1, "swiglu_clamp_exp": [0.0, 0.0, 1.5, 0.0]}
    found = read(tmp_path, "step35", further, "blk.1.ffn_gate_inp.weight")
    assert (found["num_hidden_layers"], found["num_nextn_predict_layers"]) == (3, 1)
    assert len(found["layer_types"]) == len(found["mlp_layer_types"]) == 4
    assert found["swiglu_limits"] == [0.0, 0.0, 1.5, 0.0] and found["swiglu_limits_shared"] is None
    assert (found["num_attention_heads"], found["num_sliding_attention_heads"]) == (4, 8)


def test_first_files_of_mimo_leave_out_how_values_are_scaled(tmp_path: Path) -> None:
    assert read(tmp_path, "mimo2", MIMO)["attention_value_scale"] == 0.707


@pytest.mark.parametrize(
    ("arch", "keys", "said"),
    [
        ("deci", {**DECI, "attention.head_count_kv": [2, 3, 0, 2]}, "must divide the heads"),
        ("deci", {**DECI, "attention.head_count_kv": [2, 0, 0, 2]}, "must divide the heads"),
        ("deci", {**DECI, "attention.head_count": [4, 8, 0, 4]}, "must divide the heads"),
        ("deci", {**DECI, "feed_forward_length": [1, 2]}, r"\[1, 2\], but must be sizes of 4"),
        ("step35", {**STEP, "attention.head_count": [4, 8, 6, 4]}, "must be one for each kind"),
        ("step35", {**STEP, "expert_weights_norm": False}, "is False, but is read as true"),
        ("step35", {**STEP, "attention.sliding_window_pattern": [True]}, "must say it of 4 layers"),
        ("mimo2", {**MIMO, "attention.head_count_kv": [2, 0, 4, 2]}, "must be one for each kind"),
        ("mimo2", {**MIMO, "nextn_predict_layers": 4}, "is 4, but must leave layers"),
        (
            "mistral4",
            {**MISTRAL, "attention.temperature_length": 3},
            "temperature_length is 3, but",
        ),
    ],
)
def test_bad_values_are_named(tmp_path: Path, arch: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read(tmp_path, arch, keys)
