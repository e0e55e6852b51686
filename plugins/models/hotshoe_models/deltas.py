"""Reads config.json's keys of gated-delta layers; every complaint names its key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import GatedDeltaSpec
from hotshoe_models.spec import LayerSpec
from hotshoe_models.values import FULL, activation, layer_types, number, refuse

LINEAR = "linear_attention"
#: Keys, by what they say.
KEYS = {
    "heads": "linear_num_value_heads",
    "key_heads": "linear_num_key_heads",
    "value_dim": "linear_value_head_dim",
    "key_dim": "linear_key_head_dim",
    "conv": "linear_conv_kernel_dim",
}


def delta_spec(config: ModelConfig, ctx: BuildContext) -> GatedDeltaSpec:
    """Describe a model's gated-delta blocks, without decays by channel.

    Raises:
        CheckpointError: A value is missing, malformed or does not fit the others.
    """
    heads, key_heads = config.size(KEYS["heads"]), config.size(KEYS["key_heads"])
    if heads % key_heads:
        raise refuse(config, KEYS["key_heads"], f"has {heads} heads of values to share them")
    if config.size(KEYS["conv"]) < 2:
        raise refuse(config, KEYS["conv"], "convolves over two tokens or more")
    if activation(config, "hidden_act") != "silu":
        raise refuse(config, "hidden_act", "knows only silu in its gated-delta blocks")
    return GatedDeltaSpec(
        heads,
        key_heads,
        config.size(KEYS["key_dim"]),
        config.size(KEYS["value_dim"]),
        config.size(KEYS["conv"]),
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.state_dtype,
        ctx.block_size,
        number(config, "rms_norm_eps"),
        ctx.checkpoints,
    )


def equal_heads(config: ModelConfig) -> ModelConfig:
    """Return the configuration with the heads of keys and of values, which a file has as one."""
    size, heads = config.size("linear_head_dim"), config.size("linear_num_heads")
    sizes = dict.fromkeys((KEYS["key_dim"], KEYS["value_dim"]), size)
    counts = dict.fromkeys((KEYS["key_heads"], KEYS["heads"]), heads)
    return replace(config, values={**config.values, **sizes, **counts})


def decay_floor(config: ModelConfig, name: str) -> float:
    """Return the least logarithm of a decay."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e4 < value < 0:
        raise refuse(config, name, "needs a number below 0, above -10000")
    return float(value)


def mixed_types(config: ModelConfig) -> list[str]:
    """Return each layer's type: `layer_types`, or attention in every n-th layer."""
    every = config.size("full_attention_interval", 4)
    return layer_types(config, lambda i: LINEAR if (i + 1) % every else FULL, (LINEAR, FULL))


def with_deltas(layers: Sequence[LayerSpec], types: Sequence[str]) -> tuple[LayerSpec, ...]:
    """Give gated-delta blocks to the layers of linear attention."""
    return tuple(
        replace(layer, mixer="delta", rotation=None) if kind == LINEAR else layer
        for layer, kind in zip(layers, types, strict=True)
    )
