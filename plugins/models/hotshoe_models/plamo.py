"""PLaMo 3: windows on most layers, norms on both sides of each block. PLaMo 2: state-space blocks,
and layers that attend, with the same norms.

A head of PLaMo 2's blocks has one rate of decay and one step of time, so that its weights are
those of Mamba-1 blocks, repeated for each channel. Sources: the code and the configuration classes
beside these checkpoints, and the tensors of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.remade import Recipe, remake
from hotshoe_models.selective import selective_block
from hotshoe_models.spec import WeightNames
from hotshoe_models.values import (
    FULL,
    SLIDING,
    decoder_spec,
    flag,
    layer_specs,
    number,
    refuse,
    with_defaults,
)

PLAMO2_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_size_per_head": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "full_attention_idx": None,
    "mamba_enabled": True,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_num_heads": 64,
    "mamba_step": 2,
    "rank": None,
}
PLAMO2_KEYS = {"state": "mamba_d_state", "conv": "mamba_d_conv", "rank": "rank"}
#: Least channels that the steps of time are made of; and the hidden size by these.
RANK, RANK_SHARE = 64, 16
#: Of the norms of q and k, whatever a file says of the others.
HEAD_EPS = 1e-6
#: What a block's weights are called that are made of others, so that no adapter takes them.
BLOCK = "scan"
#: Keys whose defaults differ from version to version of the published class have none here.
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 13312,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "scale_embedding": False,
    "rope_local_theta": 10_000.0,
    "rope_scaling_factor": 1.0,
    "initial_context_length": None,
    "sliding_window_pattern": 8,
}
NAMES = WeightNames(
    layer="model.layers.layers.{}.",
    input_norm="pre_mixer_norm",
    post_attention_norm="post_mixer_norm",
    mlp_norm="pre_mlp_norm",
    post_mlp_norm="post_mlp_norm",
    qkv=("mixer.qkv_proj",),
    qk_norm=("mixer.q_norm", "mixer.k_norm"),
    o="mixer.o_proj",
    gate_up=("mlp.gate_up_proj",),
)
PLAMO2_NAMES = replace(NAMES, layer_qk_norm="own_rms")
#: What is added to the weights of a norm, by the end of its name; 1 to others.
OFFSETS = {"post_mixer_norm": 1 / 5, "post_mlp_norm": 1 / 5**1.5}
#: Its code rounds the output matrix's rows up to a multiple of this.
ROWS = 16


def build(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Plamo3ForCausalLM."""
    config = with_defaults(config, DEFAULTS)
    if flag(config, "scale_embedding"):
        raise refuse(config, "scale_embedding", "is served without it")
    config = replace(config, values={**config.values, "rope_parameters": _ropes(config)})
    every = config.size("sliding_window_pattern")
    types = [SLIDING if (i + 1) % every else FULL for i in range(config.size("num_hidden_layers"))]
    layers = layer_specs(config, ctx, types, _window(config))
    remake(ctx, partial(_made, config.size("vocab_size")))
    return DenseDecoder(decoder_spec(config, layers, activation="silu", names=NAMES), ctx)


def build_plamo2(config: ModelConfig, ctx: BuildContext) -> DenseDecoder:
    """Build Plamo2ForCausalLM.

    Raises:
        CheckpointError: A text may be longer than the window of layers that attend.
    """
    config = with_defaults(config, PLAMO2_DEFAULTS)
    if number(config, "rms_norm_eps") != HEAD_EPS:
        raise refuse(config, "rms_norm_eps", f"is served with {HEAD_EPS}, as its heads are normed")
    size, dim = config.size("hidden_size"), config.size("hidden_size_per_head")
    own: dict[str, Any] = {"head_dim": dim, "rank": max(RANK, size // RANK_SHARE)}
    config = replace(config, values={**config.values, **own})
    attending = _attending(config)
    everything = config.get("full_attention_idx") or []
    if not isinstance(everything, list) or not all(type(i) is int for i in everything):
        raise refuse(config, "full_attention_idx", "needs a list of layers")
    if attending - set(everything) and ctx.max_model_len > config.size("attention_window_size"):
        raise refuse(config, "attention_window_size", "is served up to it; lower --max-model-len")
    layers = tuple(
        layer if i in attending else replace(layer, mixer="selective", rotation=None)
        for i, layer in enumerate(layer_specs(config, ctx))
    )
    inner = config.size("mamba_num_heads") * dim
    block = selective_block(
        config,
        ctx,
        PLAMO2_KEYS,
        inner=inner,
        norm_eps=number(config, "rms_norm_eps"),
        name=BLOCK,
        norms=("dt_norm", "B_norm", "C_norm"),
        conv_bias=False,
    )
    ctx.weights.rename(r"\.mixer\.([qk])_weight$", r".mixer.\1_norm.weight")
    remake(ctx, partial(_blocks, dim, block.scan.state_size, config.size("vocab_size")))
    return DenseDecoder(decoder_spec(config, layers, selective=block, names=PLAMO2_NAMES), ctx)


def _attending(config: ModelConfig) -> set[int]:
    """Return the layers that attend: one in so many, and the last one of few layers."""
    count = config.size("num_hidden_layers")
    if not flag(config, "mamba_enabled"):
        return set(range(count))
    every = config.size("mamba_step")
    if every < 2:
        raise refuse(config, "mamba_step", "has state-space blocks between layers that attend")
    return {count - 1} if count <= every // 2 else set(range(every // 2, count, every))


def _window(config: ModelConfig) -> int:
    """Return the window, which first files have in a list, by layer."""
    legacy = config.get("sliding_window")
    if config.get("window_size") is not None or legacy is None:
        return config.size("window_size")
    found = legacy if isinstance(legacy, list) else [legacy]
    found = [window for window in found if window is not None]
    if not found or any(window != found[0] for window in found):
        raise refuse(config, "sliding_window", "has one window for all layers that have one")
    return replace(config, values={"sliding_window": found[0]}).size("sliding_window")


def _ropes(config: ModelConfig) -> dict[str, Any]:
    """Return how layers of each type rotate."""
    key = "rope_theta" if config.get("rope_theta") is not None else "rope_global_theta"
    full: dict[str, Any] = {"rope_theta": number(config, key)}
    factor = number(config, "rope_scaling_factor")
    if factor != 1:
        length = config.size("initial_context_length")
        full |= {"rope_type": "yarn", "factor": factor, "truncate": False}
        full |= {"original_max_position_embeddings": length}
    return {FULL: full, SLIDING: {"rope_theta": number(config, "rope_local_theta")}}


def _made(vocab_size: int, names: Iterable[str]) -> dict[str, Recipe]:
    """Say how weights of norms are made, and the rows of the output matrix."""
    found: dict[str, Recipe] = {}
    for name in names:
        if name.endswith("norm.weight"):
            norm = name.removesuffix(".weight").rpartition(".")[2]
            found[name] = (name,), partial(_shifted, OFFSETS.get(norm, 1.0))
        elif name == "lm_head.weight":
            found[name] = (name,), partial(_first, vocab_size)
    return found


def _blocks(dim: int, state: int, vocab_size: int, names: Iterable[str]) -> dict[str, Recipe]:
    """Say how weights of norms are made, and those of blocks, whose heads have `dim` channels."""
    names = list(names)
    # Norms within mixers are as they are applied.
    found = _made(vocab_size, (name for name in names if ".mixer." not in name))
    makers: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
        "in_proj.weight": ("in_proj.weight", partial(_by_part, dim)),
        "bcdt_proj.weight": ("x_proj.weight", partial(_steps_first, 2 * state)),
        "dt_proj.weight": ("dt_proj.weight", partial(_of_channels, dim)),
        "dt_bias": ("dt_proj.bias", partial(_of_channels, dim)),
        "A_log": ("A_log", lambda rates: _of_channels(dim, rates)[:, None].expand(-1, state)),
        "D": ("D", partial(_of_channels, dim)),
        **{name: (name, _same) for name in ("conv1d.weight", "out_proj.weight")},
        **{f"{part}_norm_weight": (f"{part}_norm.weight", _same) for part in ("dt", "B", "C")},
    }
    for name in names:
        prefix, within, part = name.partition(".mixer.")
        if within and part in makers:
            own, make = makers[part]
            found[f"{prefix}.{BLOCK}.{own}"] = (name,), make
    return found


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _by_part(dim: int, matrix: Tensor) -> Tensor:
    """Bring rows of each head's gate and x to those of all heads' x, then of the gates."""
    gates, x = matrix.unflatten(0, (-1, 2, dim)).unbind(1)
    return torch.cat((x.flatten(0, 1), gates.flatten(0, 1)))


def _steps_first(rows: int, matrix: Tensor) -> Tensor:
    """Bring rows of B and C, so many together, behind those of the steps of time."""
    return torch.cat((matrix[rows:], matrix[:rows]))


def _of_channels(dim: int, heads: Tensor) -> Tensor:
    """Repeat what each head has for each of its channels."""
    return heads.repeat_interleave(dim, 0)


def _shifted(offset: float, weight: Tensor) -> Tensor:
    return weight + offset


def _first(vocab_size: int, matrix: Tensor) -> Tensor:
    """Leave out rows that the published code adds to have a multiple of `ROWS`."""
    return matrix[:vocab_size] if len(matrix) == -(-vocab_size // ROWS) * ROWS else matrix
