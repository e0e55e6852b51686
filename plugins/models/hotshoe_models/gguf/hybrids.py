"""What config.json would hold of hybrids, whose layers differ, from their GGUF files' metadata.

Beside it, what converters did to the tensors of such layers, and how that is turned back. Tensors
may be rows of bytes, so only whole rows move.
Sources: the keys of ggml's gguf.md and of the gguf package; the keys of transformers'
configurations; what llama.cpp's converter says that it does to each tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from hotshoe_models.gguf import mixtures
from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.family import Turn
from hotshoe_models.gguf.hybrid_names import LFM2_OUTER, QWEN_FURTHER_NAMES
from hotshoe_models.gguf.metadata import Metadata

if TYPE_CHECKING:
    from torch import Tensor

Config: TypeAlias = Mapping[str, Any]


def has(meta: Metadata, part: str) -> bool:
    """Tell whether some layer has a tensor."""
    return any(name.endswith(f".{part}") for name in meta.tensors)


def decay(found: Tensor, values: Config) -> Tensor:
    """Return logarithms of decays [heads] or [heads, states]; files hold what these stand for."""
    return (-found).log()


def filters(found: Tensor, values: Config) -> Tensor:
    """Return a convolution by channel [channels, 1, width] of [channels, width]."""
    return found.unsqueeze(1)


def _as_is(found: Tensor, values: Config) -> Tensor:
    return found


def _less_one(found: Tensor, values: Config) -> Tensor:
    """Return a norm's weights as checkpoints have them that add 1."""
    return found - 1


def _heads(found: Tensor, values: Config) -> Tensor:
    """Return rows of one for each head of values, or of several, as checkpoints have them.

    Heads of one key follow each other there; files have the first of every key, then the second.
    """
    keys, heads = values["linear_num_key_heads"], values["linear_num_value_heads"]
    if len(found) % heads:
        return found  # whose shape is refused where it is taken
    rows = found.view(heads // keys, keys, len(found) // heads, *found.shape[1:])
    return rows.transpose(0, 1).reshape(found.shape)


def _heads_behind_keys(found: Tensor, values: Config) -> Tensor:
    """Return rows of q, k and v, in which v's are turned like `_heads`."""
    first = 2 * values["linear_num_key_heads"] * values["linear_key_head_dim"]
    made = found.clone()
    made[first:] = _heads(found[first:], values)
    return made


#: Of Qwen3-Next: what its converter does.
QWEN_NEXT_TURNS: Mapping[str, Turn] = {
    ".A_log": decay,
    ".conv1d.weight": filters,
    ".linear_attn.norm.": _as_is,
    "mtp.pre_fc_norm_": _less_one,
}
#: Of Qwen3.5, whose converter also gives heads of values another order. `out_proj` has it in its
#: columns, which may be cut through by blocks, so that the model reads it as it is.
QWEN35_TURNS: Mapping[str, Turn] = {
    **QWEN_NEXT_TURNS,
    ".A_log": lambda found, values: _heads(decay(found, values), values),
    ".conv1d.weight": lambda found, values: _heads_behind_keys(filters(found, values), values),
    ".dt_bias": _heads,
    ".in_proj_qkv.": _heads_behind_keys,
    **dict.fromkeys((".in_proj_z.", ".in_proj_a.", ".in_proj_b."), _heads),
}

#: Fields of families.
QWEN_NEXT: dict[str, Any] = {
    "norm_offset": 1.0,
    "further": QWEN_FURTHER_NAMES,
    "turns": QWEN_NEXT_TURNS,
}
QWEN35 = {**QWEN_NEXT, "turns": QWEN35_TURNS}


def own_layers(meta: Metadata) -> int:
    """Return the number of layers, without those that predict further tokens.

    Raises:
        CheckpointError: No layer is left.
    """
    layers = meta.integer("block_count") - meta.integer("nextn_predict_layers", 0)
    if layers <= 0:
        raise meta.refuse(f"{meta.arch}.nextn_predict_layers", "but must leave layers")
    return layers


def _deltas(meta: Metadata) -> Values:
    """Return sizes of the gated delta rule, and which layers have it.

    Raises:
        CheckpointError: Sizes do not fit each other.
    """
    heads, inner = meta.integer("ssm.time_step_rank"), meta.integer("ssm.inner_size")
    keys, further = meta.integer("ssm.group_count"), meta.integer("nextn_predict_layers", 0)
    for key, parts in (("inner_size", heads), ("time_step_rank", keys)):
        if meta.integer(f"ssm.{key}") % parts:
            raise meta.refuse(f"{meta.arch}.ssm.{key}", f"but must be a multiple of {parts}")
    return {
        "num_hidden_layers": own_layers(meta),
        "num_nextn_predict_layers": further,
        "mtp_num_hidden_layers": further,
        "full_attention_interval": meta.integer("full_attention_interval", 4),
        "linear_conv_kernel_dim": meta.integer("ssm.conv_kernel"),
        "linear_key_head_dim": meta.integer("ssm.state_size"),
        "linear_num_key_heads": keys,
        "linear_num_value_heads": heads,
        "linear_value_head_dim": inner // heads,
        "attention_bias": has(meta, "attn_q.bias"),
    }


def _qwen_experts(meta: Metadata) -> Values:
    shared = meta.integer("expert_shared_feed_forward_length")
    return {**mixtures.qwen3_moe(meta), "shared_expert_intermediate_size": shared}


def qwen_next(meta: Metadata) -> Values:
    """The first files had q, k, v and z in one matrix, as the checkpoint has."""
    return {**_deltas(meta), **_qwen_experts(meta), "qkv_apart": has(meta, "attn_qkv.weight")}


def qwen35(meta: Metadata) -> Values:
    return {**_deltas(meta), "value_heads_tiled": True}


def qwen35_moe(meta: Metadata) -> Values:
    return {**qwen35(meta), **_qwen_experts(meta)}


LFM2_TURNS: Mapping[str, Turn] = {".conv.conv.weight": filters}
LFM2: dict[str, Any] = {"outer": LFM2_OUTER, "mixed": True, "turns": LFM2_TURNS}


def lfm2(meta: Metadata) -> Values:
    """Layers without heads of keys and values convolve."""
    attends = meta.sizes("attention.head_count_kv")
    return {
        "layer_types": ["full_attention" if heads else "conv" for heads in attends],
        "conv_L_cache": meta.integer("shortconv.l_cache"),
        "conv_bias": has(meta, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(meta: Metadata) -> Values:
    """Files leave out that weights of experts are made to sum to 1."""
    routed = mixtures.routed(meta)
    return {
        **routed,
        **lfm2(meta),
        "num_dense_layers": routed["first_k_dense_replace"],
        "use_expert_bias": has(meta, "exp_probs_b.bias"),
        "norm_topk_prob": meta.flag("lfm2moe.expert_weights_norm", True),
    }


#: Files have three convolutions of Kimi's, each [1, channels, 1, width].
KIMI_TURNS: Mapping[str, Turn] = {
    ".A_log": decay,
    "_conv1d.weight": lambda found, values: found.reshape(-1, 1, found.shape[-1]),
}
KIMI_LINEAR: dict[str, Any] = {"mixed": True, "latents": True, "turns": KIMI_TURNS}


def kimi_linear(meta: Metadata) -> Values:
    """Layers without heads of keys and values have delta attention, and others latents.

    Files leave out that weights of experts are made to sum to 1.
    """
    attends = meta.sizes("attention.head_count_kv")
    return {
        **mixtures.latents(meta),
        **mixtures.routed(meta),
        "norm_topk_prob": meta.flag("kimi-linear.expert_weights_norm", True),
        "layer_types": ["full_attention" if heads else "linear_attention" for heads in attends],
        "linear_num_heads": meta.integer("attention.head_count"),
        "linear_head_dim": meta.integer("kda.head_dim"),
        "linear_conv_kernel_dim": meta.integer("ssm.conv_kernel"),
    }
