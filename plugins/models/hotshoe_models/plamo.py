"""PLaMo 3: windows on most layers, norms on both sides of each block.

Sources: the code and the configuration class beside these checkpoints, and the tensors of the
files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.remade import Recipe, remake
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


def _window(config: ModelConfig) -> int:
    """Return the window, which first files have in a list, by layer."""
    legacy = config.get("sliding_window")
    if config.get("window_size") is not None or legacy is None:
        return config.size("window_size")
    found = set(legacy) - {None} if isinstance(legacy, list) else {legacy}
    if len(found) != 1:
        raise refuse(config, "sliding_window", "has one window for all layers that have one")
    return replace(config, values={"sliding_window": found.pop()}).size("sliding_window")


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


def _shifted(offset: float, weight: Tensor) -> Tensor:
    return weight + offset


def _first(vocab_size: int, matrix: Tensor) -> Tensor:
    """Leave out rows that the published code adds to have a multiple of `ROWS`."""
    return matrix[:vocab_size] if len(matrix) == -(-vocab_size // ROWS) * ROWS else matrix
