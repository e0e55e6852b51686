"""What config.json would hold of models with state-space blocks, from their GGUF files' metadata.

Source: see `hybrids`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hotshoe_models.gguf import dense, mixtures
from hotshoe_models.gguf.dense import Values
from hotshoe_models.gguf.family import Turn
from hotshoe_models.gguf.hybrid_names import BACKBONE_OUTER, FALCON_H1_OUTER, QWEN_FURTHER_NAMES
from hotshoe_models.gguf.hybrids import Config, decay, filters, has, own_layers
from hotshoe_models.gguf.metadata import Metadata

if TYPE_CHECKING:
    from torch import Tensor


def _flat(found: Tensor, values: Config) -> Tensor:
    """Return numbers of heads or channels, which files have in several dimensions."""
    return found.flatten()


#: Of Mamba 1, and of Mamba 2.
MAMBA_TURNS: Mapping[str, Turn] = {".A_log": decay, ".conv1d.weight": filters}
TURNS: Mapping[str, Turn] = {
    ".A_log": lambda found, values: decay(found, values).flatten(),
    ".conv1d.weight": filters,
    ".mixer.D": _flat,
    ".mixer.norm.": _flat,
    ".mamba.D": _flat,
    ".mamba.norm.": _flat,
}
_BACKBONE: dict[str, Any] = {"outer": BACKBONE_OUTER, "layer": "backbone.layers.{}."}
MAMBA: dict[str, Any] = {**_BACKBONE, "attends": False, "turns": MAMBA_TURNS}
MAMBA2 = {**MAMBA, "turns": TURNS}
GRANITE: dict[str, Any] = {"mixed": True, "pairs": True, "turns": TURNS}
FALCON_H1: dict[str, Any] = {"outer": FALCON_H1_OUTER, "turns": TURNS}
NEMOTRON_H: dict[str, Any] = {
    **GRANITE,
    **_BACKBONE,
    "further": QWEN_FURTHER_NAMES,  # which the model leaves out
}


def _divided(meta: Metadata, key: str, parts: int) -> int:
    """Return how much of a size each part has.

    Raises:
        CheckpointError: It is missing, or cannot be divided.
    """
    size = meta.integer(key)
    if size % parts:
        raise meta.refuse(f"{meta.arch}.{key}", f"but must be a multiple of {parts}")
    return size // parts


def expansion(meta: Metadata) -> int:
    return _divided(meta, "ssm.inner_size", meta.integer("embedding_length"))


def _alone(meta: Metadata) -> Values:
    """Return keys of models of such blocks alone."""
    return {
        "state_size": meta.integer("ssm.state_size"),
        "conv_kernel": meta.integer("ssm.conv_kernel"),
        "use_bias": has(meta, "ssm_in.bias"),
        "use_conv_bias": has(meta, "ssm_conv1d.bias"),
    }


def mamba(meta: Metadata) -> Values:
    """Falcon-Mamba is called mamba, too, and norms what others do not."""
    norms = meta.flag("mamba.ssm.dt_b_c_rms", False)
    return {
        **_alone(meta),
        "intermediate_size": meta.integer("ssm.inner_size"),
        "architectures": ["FalconMambaForCausalLM" if norms else "MambaForCausalLM"],
        "time_step_rank": meta.integer("ssm.time_step_rank"),
    }


def mamba2(meta: Metadata) -> Values:
    heads = meta.integer("ssm.time_step_rank")
    return {
        **_alone(meta),
        "expand": expansion(meta),
        "num_heads": heads,
        "head_dim": _divided(meta, "ssm.inner_size", heads),
        "n_groups": meta.integer("ssm.group_count"),
    }


def _beside(meta: Metadata) -> Values:
    """Return keys of Mamba-2 blocks in models that attend, too."""
    heads = meta.integer("ssm.time_step_rank")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": _divided(meta, "ssm.inner_size", heads),
        "mamba_n_groups": meta.integer("ssm.group_count"),
        "mamba_d_state": meta.integer("ssm.state_size"),
        "mamba_d_conv": meta.integer("ssm.conv_kernel"),
        "mamba_conv_bias": has(meta, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(meta, "ssm_in.bias"),
        "attention_bias": has(meta, "attn_q.bias"),
    }


def granite_hybrid(meta: Metadata) -> Values:
    """Layers without heads of keys and values have such blocks.

    Bamba is called the same. Its files have no factors, and its attention rotates.
    """
    rotates = meta.flag("granitehybrid.rope.scaling.finetuned", False)
    attends = meta.sizes("attention.head_count_kv")
    experts = mixtures.experts(meta) if meta.integer("expert_count", 0) else {"num_experts": 0}
    shared = meta.integer("expert_shared_feed_forward_length", 0)
    return {
        **(_without_factors(meta) if rotates else dense.granite(meta)),
        **experts,
        **_beside(meta),
        "mamba_expand": expansion(meta),
        "layer_types": ["full_attention" if heads else "linear_attention" for heads in attends],
        "shared_intermediate_size": shared or meta.integer("feed_forward_length"),
        "experts_by_name": True,
    }


def _without_factors(meta: Metadata) -> Values:
    """Return Granite's keys of a model that has none of its factors, and rotates."""
    return {
        "attention_multiplier": dense.head_size(meta) ** -0.5,
        **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "logits_scaling"), 1.0),
        "position_embedding_type": "rope",
    }


def falcon_h1(meta: Metadata) -> Values:
    """Matrices hold the model's factors already.

    Where embeddings are the output matrix, too, their factor is another than that of logits, which
    the file leaves out. The model asks for it.
    """
    tied = "output.weight" not in meta.tensors
    return {
        **({"lm_head_multiplier": None} if tied else {}),
        **_beside(meta),
        "mamba_d_ssm": meta.integer("ssm.inner_size"),
        "mamba_rms_norm": has(meta, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": has(meta, "ssm_out.bias"),
    }


def nemotron_h(meta: Metadata) -> Values:
    """Layers have heads of keys and values, or an MLP or experts, or else such a block."""
    heads, layers = meta.integer("ssm.time_step_rank"), own_layers(meta)
    attends, inner = meta.sizes("attention.head_count_kv"), meta.sizes("feed_forward_length")
    wide = "moe" if meta.integer("expert_count", 0) else "mlp"
    kinds = [
        "full_attention" if kv else wide if size else "linear_attention"
        for kv, size in zip(attends, inner, strict=True)
    ]
    return {
        "num_hidden_layers": layers,
        "layers_block_type": kinds[:layers],
        "mamba_num_heads": heads,
        "mamba_head_dim": _divided(meta, "ssm.inner_size", heads),
        "n_groups": meta.integer("ssm.group_count"),
        "ssm_state_size": meta.integer("ssm.state_size"),
        "conv_kernel": meta.integer("ssm.conv_kernel"),
        "use_bias": has(meta, "ssm_in.bias"),
        "use_conv_bias": has(meta, "ssm_conv1d.bias"),
        "attention_bias": has(meta, "attn_q.bias"),
        "mlp_bias": has(meta, "ffn_up.bias"),
    }


def nemotron_h_moe(meta: Metadata) -> Values:
    routed = mixtures.routed(meta)
    shared = meta.integer("expert_shared_feed_forward_length")
    return {
        **routed,
        **nemotron_h(meta),
        "n_routed_experts": routed["num_experts"],
        "moe_shared_expert_intermediate_size": shared,
        "moe_latent_size": meta.integer("moe_latent_size", 0) or None,
    }
