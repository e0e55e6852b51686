"""Reads config.json into a `StateBlock`; every complaint names its key.

Keys of hybrid models carry a prefix, those of Mamba 2 alone do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe.layers import BuildContext
from hotshoe.models import ModelConfig
from hotshoe.slots import StateSpaceSpec
from hotshoe_models.spec import StateBlock
from hotshoe_models.values import activation, refuse

#: Keys of hybrid models, by what they say.
HYBRID_KEYS = {
    "heads": "mamba_n_heads",
    "head_dim": "mamba_d_head",
    "groups": "mamba_n_groups",
    "state": "mamba_d_state",
    "conv": "mamba_d_conv",
    "expand": "mamba_expand",
}


def state_block(
    config: ModelConfig,
    ctx: BuildContext,
    keys: Mapping[str, str] = HYBRID_KEYS,
    *,
    inner: int | None = None,
    norm: str = "after",
    eps: float = 1e-5,
    **differences: Any,
) -> StateBlock:
    """Describe a model's Mamba-2 blocks.

    Args:
        keys: Names of sizes in config.json.
        inner: Channels of a block; default: `expand` times the hidden size.
        norm, eps: Of the block's result.
        differences: Other fields of the block.

    Raises:
        CheckpointError: A value is missing, malformed or does not fit the others.
    """
    heads, groups = config.size(keys["heads"]), config.size(keys["groups"])
    inner = inner or config.size(keys["expand"]) * config.size("hidden_size")
    if inner % heads:
        raise refuse(config, keys["heads"], f"has {inner} channels to divide among the heads")
    if config.get(keys["head_dim"], "auto") not in ("auto", inner // heads):
        raise refuse(config, keys["head_dim"], f"has {inner} channels for {heads} heads")
    if heads % groups:
        raise refuse(config, keys["groups"], f"has {heads} heads to divide among the groups")
    if config.size(keys["conv"]) < 2:
        raise refuse(config, keys["conv"], "convolves over two tokens or more")
    act = keys.get("activation", "hidden_act")
    if activation(config, act) != "silu":
        raise refuse(config, act, "knows only silu in its state-space blocks")
    space = StateSpaceSpec(
        heads,
        inner // heads,
        config.size(keys["state"]),
        groups,
        config.size(keys["conv"]),
        ctx.dtype,
        ctx.conv_state_dtype or ctx.dtype,
        ctx.state_dtype,
        ctx.block_size,
        ctx.checkpoints,
        _time_limits(config),
        norm,
        0.0 if norm == "none" else eps,
        1 if norm == "none" else groups,
    )
    return StateBlock(space=space, **differences)


def _time_limits(config: ModelConfig) -> tuple[float, float]:
    """Return the least and largest step of time."""
    name = "time_step_limit"
    given = config.get(name, [0.0, float("inf")])
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        raise refuse(config, name, "needs two numbers") from None
    if not 0.0 <= low < high:
        raise refuse(config, name, "needs two ascending numbers from 0 on")
    return low, high
