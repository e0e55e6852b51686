"""Writes tiny GGUF files of hybrids as converters do: their keys, and changes of tensors."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tests.plugins.models.gguf import uneven_files
from tests.plugins.models.gguf.conftest import (
    EXPERT_KEYS,
    halves,
    latents_of,
    paired,
    parts_of,
    vocabulary,
    write,
)

Parts = list[tuple[str, np.ndarray]]
#: Names of architectures in files, by the family's name in transformers.
ARCHS = {
    "Qwen3Next": "qwen3next",
    "Qwen3_5": "qwen35",
    "Qwen3_5Moe": "qwen35moe",
    "Lfm2": "lfm2",
    "Lfm2Moe": "lfm2moe",
    "GraniteMoeHybrid": "granitehybrid",
    "Bamba": "granitehybrid",
    "FalconH1": "falcon-h1",
    "Mamba": "mamba",
    "FalconMamba": "mamba",
    "Mamba2": "mamba2",
    "NemotronH": "nemotron_h",
    "Gemma4": "gemma4",
    "Gemma3n": "gemma3n",
    "KimiLinear": "kimi-linear",
    **uneven_files.ARCHS,
}
#: Those that a family has beside.
FURTHER = ("nemotron_h_moe",)
#: What the writer's package calls them, where it is not the name in files.
#: What it calls those that it does not know: others with such tensors.
CONSTANTS = {
    **dict.fromkeys(("hy_v3", "laguna", "mellum", "minimax-m3"), "STEP35"),
    "granitehybrid": "GRANITE_HYBRID",
    "falcon-h1": "FALCON_H1",
    "kimi-linear": "KIMI_LINEAR",
    "glm-dsa": "GLM_DSA",
    "deepseek32": "GLM_DSA",
}
#: Tensors that are never quantized.
SMALL = ("conv", "norm", "output_scale", "rope_")
EPSILONS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon")


def common(config: Any) -> dict[str, Any]:
    """Return keys that almost all files have."""
    found: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", 2**20),
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": getattr(config, "num_attention_heads", 0),
        "attention.head_count_kv": getattr(config, "num_key_value_heads", 0),
    }
    for key in EPSILONS:
        if hasattr(config, key):
            found["attention.layer_norm_rms_epsilon"] = float(getattr(config, key))
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


#: Keys of state-space blocks, by those of configurations, without what these may begin with.
SPACE_KEYS = {
    **dict.fromkeys(("d_conv", "conv_kernel"), "ssm.conv_kernel"),
    **dict.fromkeys(("d_state", "state_size", "ssm_state_size"), "ssm.state_size"),
    "n_groups": "ssm.group_count",
    **dict.fromkeys(("n_heads", "num_heads"), "ssm.time_step_rank"),
}


def space_keys(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, own in SPACE_KEYS.items():
        for name in (f"mamba_{key}", key):
            if hasattr(config, name):
                found[own] = getattr(config, name)
    return found


def mamba_keys(config: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"feed_forward_length": 0}
    found["ssm.inner_size"] = config.expand * config.hidden_size
    if config.model_type != "mamba2":
        found["ssm.inner_size"] = config.intermediate_size
        found["ssm.time_step_rank"] = config.time_step_rank
        found["ssm.dt_b_c_rms"] = config.model_type == "falcon_mamba"
    return {**space_keys(config), **found}


def granite_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    found = {
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "attention.head_count_kv": [config.num_key_value_heads * attend for attend in attends],
        "rope.scaling.finetuned": False,
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
        "feed_forward_length": config.intermediate_size,
    }
    return {**space_keys(config), **found}


def bamba_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    return {
        **space_keys(config),
        "ssm.inner_size": config.mamba_expand * config.hidden_size,
        "attention.head_count_kv": [config.num_key_value_heads * attend for attend in attends],
        "rope.dimension_count": config.hidden_size // config.num_attention_heads // 2,
        "rope.scaling.finetuned": True,
    }


def falcon_keys(config: Any) -> dict[str, Any]:
    return {**space_keys(config), "ssm.inner_size": config.mamba_d_ssm}


def nemotron_keys(config: Any) -> dict[str, Any]:
    kinds, inner = config.layers_block_type, config.intermediate_size
    moe = "moe" in kinds
    found = {
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "attention.head_count_kv": [
            config.num_key_value_heads * (kind == "full_attention") for kind in kinds
        ],
    }
    if moe:
        inner = config.moe_intermediate_size
        found["expert_shared_feed_forward_length"] = config.moe_shared_expert_intermediate_size
        found["expert_weights_norm"] = config.norm_topk_prob
        found["expert_weights_scale"] = config.routed_scaling_factor
        if config.moe_latent_size:
            found["moe_latent_size"] = config.moe_latent_size
    else:
        found["expert_count"] = 0
    found["feed_forward_length"] = [inner * (kind in ("mlp", "moe")) for kind in kinds]
    return {**space_keys(config), **found}


def spaces(name: str, found: np.ndarray, config: Any) -> Parts:
    """Rename and change a tensor of a model with state-space blocks."""
    later = config.model_type not in ("mamba", "falcon_mamba")
    if name.endswith("A_log"):
        found = -np.exp(found)
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    if name.endswith("conv1d.weight"):
        found = found[:, 0]
    if later and name.endswith(("A_log", ".D")):
        found = found[:, None]
    if name.endswith((".mixer.norm.weight", ".mamba.norm.weight")):
        groups = space_keys(config)["ssm.group_count"]
        found = found.reshape(groups, -1)
    return [(name, found)]


def granite(name: str, found: np.ndarray, config: Any) -> Parts:
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if f"{part}_proj" in name:
            found = paired(found, heads)
    if not config.num_local_experts and "shared_mlp" in name:
        name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
        if "input_linear" in name:
            prefix, both = name.partition("shared_mlp")[0], np.split(found, 2)
            named = (f"{prefix}mlp.{part}_proj.weight" for part in ("gate", "up"))
            return list(zip(named, both, strict=True))
    return [p for part in spaces(name, found, config) for p in parts_of(*part, "GraniteMoeShared")]


def bamba(name: str, found: np.ndarray, config: Any) -> Parts:
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if f"{part}_proj" in name:
            found = paired(found, heads)
    return spaces(name.replace("model.final_layernorm", "model.norm"), found, config)


def falcon(name: str, found: np.ndarray, config: Any) -> Parts:
    """Multiply matrices by the model's factors."""
    attention, mlp = config.attention_in_multiplier, config.mlp_multipliers
    group = config.mamba_n_groups * config.mamba_d_state
    widths = (config.mamba_d_ssm, config.mamba_d_ssm, group, group, config.mamba_n_heads)
    factors = {
        "down_proj": mlp[1],
        "gate_proj": mlp[0],
        "k_proj": config.key_multiplier * attention,
        "q_proj": attention,
        "v_proj": attention,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "lm_head": config.lm_head_multiplier,
        "embed_tokens": config.embedding_multiplier,
    }
    if ".in_proj" in name:
        rows = np.repeat(np.array(config.ssm_multipliers), widths)[:, None]
        found = found * config.ssm_in_multiplier * rows.astype(np.float32)
    part = next((part for part in factors if part in name), None)
    return spaces(name, found * factors[part] if part else found, config)


def nemotron(name: str, found: np.ndarray, config: Any) -> Parts:
    for part, heads in (("q", config.num_attention_heads), ("k", config.num_key_value_heads)):
        if f"{part}_proj" in name:
            found = paired(found, heads)
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    prefix, experts, part = name.partition("mixer.experts.")
    if experts:
        return [(f"{prefix.replace('backbone', 'model')}mlp.experts.{part}.weight", found)]
    return spaces(name, found, config)


def gemma4_keys(config: Any) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in config.layer_types]
    own, inner = len(slides) - config.num_kv_shared_layers, config.intermediate_size
    wide = 2 if config.use_double_wide_mlp else 1
    rope, layers = config.rope_parameters, range(config.num_hidden_layers)
    experts = {}
    if config.enable_moe_block:
        experts["expert_used_count"] = config.top_k_experts
    return experts | {
        "attention.head_count_kv": [config.per_layer_config[i].num_key_value_heads for i in layers],
        "attention.key_length": WIDE,
        "attention.value_length": WIDE,
        "attention.key_length_swa": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": slides,
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": [inner * (1 if i < own else wide) for i in range(len(slides))],
        "final_logit_softcapping": config.final_logit_softcapping or 0.0,
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": WIDE,
        "rope.dimension_count_swa": config.head_dim,
    }


#: Channels of a full layer's heads, of tests.
WIDE = 24


def gemma4(name: str, found: np.ndarray, config: Any) -> Parts:
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        name += ".weight"
    if name.endswith("router.per_expert_scale"):
        name = name.replace("router.per_expert_scale", "experts.down_proj.scale")
    if name.endswith("router.scale"):
        name = name.replace("router.scale", "router.proj.scale")
    return [(name + ".weight" if name.endswith("layer_scalar") else name, found)]


def gemma4_factors(config: Any) -> np.ndarray:
    """Return what the frequencies of a full layer's pairs are divided by."""
    part = config.rope_parameters["full_attention"]["partial_rotary_factor"]
    turned = int(WIDE * part / 2)
    return np.array([1.0] * turned + [1e30] * (WIDE // 2 - turned), np.float32)


def gemma3n_keys(config: Any) -> dict[str, Any]:
    rope, normal = config.rope_parameters, torch.distributions.Normal(0, 1)
    return {
        "altup.active_idx": config.altup_active_idx,
        "altup.num_inputs": config.altup_num_inputs,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [k == "sliding_attention" for k in config.layer_types],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": list(config.intermediate_size),
        "activation_sparsity_scale": [
            normal.icdf(torch.tensor(float(x))).item() for x in config.activation_sparsity_pattern
        ],
        "final_logit_softcapping": config.final_logit_softcapping,
        "rope.freq_base": float(rope["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
    }


def gemma3n(name: str, found: np.ndarray, config: Any) -> Parts:
    return [(name + ".weight" if name.endswith("_scale") else name, found)]


def kimi_keys(config: Any) -> dict[str, Any]:
    attends = [kind == "full_attention" for kind in config.layer_types]
    return {
        **latents_of(config),
        "attention.head_count_kv": [int(attend) for attend in attends],
        "attention.key_length_mla": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
        "kda.head_dim": config.linear_head_dim,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "expert_gating_func": 2,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def kimi(name: str, found: np.ndarray, config: Any) -> Parts:
    name = name.replace("forget_gate.", "")
    if name.endswith("A_log"):
        found = -np.exp(found)
    if name.endswith("dt_bias"):
        name = name.replace("dt_bias", "dt_proj.bias")
    if "conv1d" in name:
        each = [part.reshape(1, -1, 1, found.shape[-1]) for part in np.split(found, 3)]
        return [
            (name.replace("conv1d", f"{p}_conv1d"), t) for p, t in zip("qkv", each, strict=True)
        ]
    if "e_score" in name:
        name = name.replace("mlp.gate", "block_sparse_moe.gate").replace("_bias", ".bias")
        return [(name, found)]
    parts = halves(name, found, config)
    return [p for part in parts for p in parts_of(*part, "KimiLinear")]


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Put matrices of further streams into one tensor."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part, number, _ = re.fullmatch(r"(.*?)(\.\d)?(\.weight)?", name).groups()
        if part.endswith(("altup_projections", "altup_unembed_projections")):
            found.setdefault(f"{part}.weight", {})[number] = tensor
        else:
            found[name] = tensor
    return {
        name: np.stack(list(tensor.values())) if isinstance(tensor, dict) else tensor
        for name, tensor in found.items()
    }


KEYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "Qwen3Next": qwen_keys,
    "Qwen3_5": qwen_keys,
    "Qwen3_5Moe": qwen_keys,
    "Lfm2": lfm2_keys,
    "Lfm2Moe": lfm2_keys,
    "GraniteMoeHybrid": granite_keys,
    "Bamba": bamba_keys,
    "FalconH1": falcon_keys,
    "Mamba": mamba_keys,
    "FalconMamba": mamba_keys,
    "Mamba2": mamba_keys,
    "NemotronH": nemotron_keys,
    "Gemma4": gemma4_keys,
    "Gemma3n": gemma3n_keys,
    "KimiLinear": kimi_keys,
    **uneven_files.KEYS,
}
CHANGES: dict[str, Callable[[str, np.ndarray, Any], Parts]] = {
    "Qwen3Next": qwen,
    "Qwen3_5": qwen,
    "Qwen3_5Moe": qwen,
    "Lfm2": lfm2,
    "Lfm2Moe": lfm2,
    "GraniteMoeHybrid": granite,
    "Bamba": bamba,
    "FalconH1": falcon,
    "Mamba": spaces,
    "FalconMamba": spaces,
    "Mamba2": spaces,
    "NemotronH": nemotron,
    "Gemma4": gemma4,
    "Gemma3n": gemma3n,
    "KimiLinear": kimi,
    **uneven_files.CHANGES,
}


def keys_of(family: str, config: Any, arch: str = "") -> dict[str, Any]:
    """Return all keys of a file, with the architecture's name and the vocabulary."""
    config.allow_global_per_layer_attribute_access = True  # Gemma 4's heads differ
    values, arch = common(config) | KEYS[family](config), arch or ARCHS[family]
    values = {f"{arch}.{key}": value for key, value in values.items() if value is not None}
    return values | vocabulary(config.vocab_size)


def tensors_of(family: str, model: Any, arch: str = "") -> dict[str, np.ndarray]:
    """Return tensors under a file's names."""
    config, arch = model.config.get_text_config(), arch or ARCHS[family]
    known = gguf.MODEL_ARCH[CONSTANTS.get(arch, arch.upper())]
    names = gguf.get_tensor_name_map(known, config.num_hidden_layers)
    found: dict[str, np.ndarray] = {}
    if family == "Gemma4":
        found["rope_freqs.weight"] = gemma4_factors(config)
    if family == "Step3p7":
        found["rope_freqs.weight"] = uneven_files.step_factors(config)
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    for name, tensor in stacked(state).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if family == "NemotronH":
            name = name.replace("model.", "backbone.", 1)
        for part, values in CHANGES[family](name, tensor, config):
            called = names.get_name(part, try_suffixes=(".weight", ".bias", ".scale"))
            called = part if part.startswith("blk.") else called
            assert called is not None, part
            found[called] = np.ascontiguousarray(values)
    return found


def export(
    checkpoint: Any, family: str, path: Path, kind: Callable[[str], str], arch: str = ""
) -> Path:
    """Write a checkpoint of transformers as a converter would, its matrices in a type."""
    model = checkpoint.model
    keys = keys_of(family, model.config.get_text_config(), arch)

    def choose(name: str) -> str:
        small = name.endswith(("ssm_a", "ssm_d", ".scale")) or any(part in name for part in SMALL)
        return "F32" if small else kind(name)

    return write(path, arch or ARCHS[family], keys, tensors_of(family, model, arch), choose)
