"""Writes tiny GGUF files of hybrids as converters do: their keys, and changes of tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.plugins.models.gguf.conftest import EXPERT_KEYS, parts_of, vocabulary, write

Parts = list[tuple[str, np.ndarray]]
#: Names of architectures in files, and what the writer's package calls them.
ARCHS = {
    "Qwen3Next": ("qwen3next", "QWEN3NEXT"),
    "Qwen3_5": ("qwen35", "QWEN35"),
    "Qwen3_5Moe": ("qwen35moe", "QWEN35MOE"),
    "Lfm2": ("lfm2", "LFM2"),
    "Lfm2Moe": ("lfm2moe", "LFM2MOE"),
}

#: Tensors that are never quantized.
SMALL = ("conv", "norm")

EPSILONS = dict.fromkeys(("rms_norm_eps", "norm_eps"), "attention.layer_norm_rms_epsilon")


def common(config: Any) -> dict[str, Any]:
    """Return keys that almost all files have."""
    found: dict[str, Any] = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    for key, own in EPSILONS.items():
        if hasattr(config, key):
            found[own] = float(getattr(config, key))
    for key in ("key", "value"):
        if getattr(config, "head_dim", None):
            found[f"attention.{key}_length"] = config.head_dim
    if isinstance(getattr(config, "intermediate_size", None), int):
        found["feed_forward_length"] = config.intermediate_size
    rope = getattr(config, "rope_parameters", None) or {}
    if "rope_theta" in rope:
        found["rope.freq_base"] = float(rope["rope_theta"])
    return found | {own: n for key, own in EXPERT_KEYS.items() if (n := getattr(config, key, 0))}


def qwen_keys(config: Any) -> dict[str, Any]:
    heads = config.linear_num_value_heads
    rotated = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 0.25))
    types = config.layer_types
    return {
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config.linear_value_head_dim * heads,
        "full_attention_interval": types.index("full_attention") + 1,
        "rope.dimension_count": rotated,
    }


def by_value_head(rows: np.ndarray, config: Any) -> np.ndarray:
    """Put the first head of values of each key first, then the second of each."""
    keys, heads = config.linear_num_key_heads, config.linear_num_value_heads
    order = [k * (heads // keys) + j for j in range(heads // keys) for k in range(keys)]
    return np.concatenate([np.split(rows, heads)[head] for head in order])


def qwen(name: str, found: np.ndarray, config: Any) -> Parts:
    """Rename and change a tensor of a gated-delta model; only Qwen3.5's heads change places."""
    moved = config.model_type.startswith("qwen3_5")
    first = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if name.endswith("A_log"):
        found = -np.exp(found)
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    if "conv1d" in name:
        found = found[:, 0]
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        found = found + 1
    if moved and any(part in name for part in ("conv1d", "in_proj_qkv.")):
        found = np.concatenate((found[:first], by_value_head(found[first:], config)))
    if moved and any(part in name for part in ("in_proj_z", "proj_a", "proj_b", "A_log", "dt_pr")):
        found = by_value_head(found, config)
    if moved and "linear_attn.out_proj" in name:
        found = by_value_head(found.T, config).T
    if "in_proj_qkvz" not in name:
        return parts_of(name, found, "Qwen3Moe")
    groups = found.reshape(config.linear_num_key_heads, -1, found.shape[1])
    dim, heads = config.linear_key_head_dim, config.linear_num_value_heads
    width = heads // config.linear_num_key_heads * config.linear_value_head_dim
    parts = np.split(groups, [dim, 2 * dim, 2 * dim + width], axis=1)
    q, k, v, z = (part.reshape(-1, found.shape[1]) for part in parts)
    prefix = name.partition("in_proj")[0]
    qkv = np.concatenate((q, k, v))
    return [(f"{prefix}in_proj_qkv.weight", qkv), (f"{prefix}in_proj_z.weight", z)]


def lfm2_keys(config: Any) -> dict[str, Any]:
    heads, size = config.num_key_value_heads, config.intermediate_size
    if getattr(config, "block_auto_adjust_ff_dim", False):
        size = int(config.block_ffn_dim_multiplier * int(2 * size / 3))
        size = -(-size // config.block_multiple_of) * config.block_multiple_of
    found: dict[str, Any] = {
        "attention.head_count_kv": [heads * (kind != "conv") for kind in config.layer_types],
        "feed_forward_length": size,
        "shortconv.l_cache": config.conv_L_cache,
    }
    if config.model_type == "lfm2_moe":
        found["leading_dense_block_count"] = config.num_dense_layers
        found["expert_gating_func"] = 2
    return found


def lfm2(name: str, found: np.ndarray, config: Any) -> Parts:
    if "conv.conv.weight" in name:
        found = found[:, 0]
    if name.endswith("expert_bias"):
        name += ".bias"
    prefix, experts, part = name.partition("feed_forward.experts.")
    if not experts:
        return [(name, found)]
    # The writer's package knows parts of experts by other names than those of these files.
    prefix += "mlp.experts."
    if part == "down_proj":
        return [(f"{prefix}down_proj.weight", found)]
    gate, up = np.split(found, 2, axis=1)
    return [(f"{prefix}gate_proj.weight", gate), (f"{prefix}up_proj.weight", up)]


KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Qwen3Next": qwen_keys,
    "Qwen3_5": qwen_keys,
    "Qwen3_5Moe": qwen_keys,
    "Lfm2": lfm2_keys,
    "Lfm2Moe": lfm2_keys,
}
CHANGES: dict[str, Callable[[str, np.ndarray, Any], Parts]] = {
    "Qwen3Next": qwen,
    "Qwen3_5": qwen,
    "Qwen3_5Moe": qwen,
    "Lfm2": lfm2,
    "Lfm2Moe": lfm2,
}


def keys_of(family: str, config: Any) -> dict[str, Any]:
    """Return all keys of a file, with the architecture's name and the vocabulary."""
    arch = ARCHS[family][0]
    values = common(config) | KEYS[family](config)
    return {f"{arch}.{key}": value for key, value in values.items()} | vocabulary(config.vocab_size)


def tensors_of(family: str, model: Any) -> dict[str, np.ndarray]:
    """Return tensors under a file's names."""
    config = model.config
    known = gguf.MODEL_ARCH[ARCHS[family][1]]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, values in CHANGES[family](name, tensor.float().numpy(), config):
            called = names.get_name(part, try_suffixes=(".weight", ".bias", ".scale"))
            assert called is not None, part
            found[called] = np.ascontiguousarray(values)
    return found


def export(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint of transformers as a converter would, its matrices in a type."""
    model, arch = checkpoint.model, arch or ARCHS[family][0]

    def choose(name: str) -> str:
        return (
            "F32"
            if any(part in name for part in SMALL) or name.endswith(("ssm_a", "ssm_d"))
            else kind(name)
        )

    return write(path, arch, keys_of(family, model.config), tensors_of(family, model), choose)
