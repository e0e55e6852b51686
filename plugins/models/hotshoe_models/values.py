"""Reads config.json over a family's defaults into a `DecoderSpec`; every complaint names its key.

A configuration file may leave out whatever equals its class's default, so each family lists the
defaults of the class it was written by. null is a value of its own: it is not replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hotshoe.errors import CheckpointError, ConfigError
from hotshoe.layers import BuildContext, Rotation, Temperature
from hotshoe.models import ModelConfig
from hotshoe_models.spec import DecoderSpec, LayerSpec

FULL = "full_attention"
SLIDING = "sliding_attention"

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
#: Those of MLPs without gates.
PLAIN_ACTIVATIONS = {**ACTIVATIONS, "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2"}


def with_defaults(config: ModelConfig, defaults: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration with absent keys filled in."""
    return replace(config, values={**defaults, **config.values})


def refuse(config: ModelConfig, name: str, why: str) -> CheckpointError:
    """Return the error for a value that cannot be served."""
    return CheckpointError(
        f"config.json: {name} is {config.values.get(name)!r}, but {config.architecture} {why}"
    )


def refuse_stages(ctx: BuildContext, why: str) -> None:
    """Refuse stages where layers need more than one hidden state of the layers before them.

    Args:
        why: A sentence about the layers, without its end.

    Raises:
        ConfigError: Stages are to divide the layers.
    """
    if ctx.stage.size > 1:
        raise ConfigError(
            f"{why}, so that no stages can divide them; use a --pipeline-parallel-size of 1"
        )


def flag(config: ModelConfig, name: str) -> bool:
    """Return a boolean; null is false."""
    value = config.get(name, False)
    if not isinstance(value, bool):
        raise refuse(config, name, "needs true or false")
    return value


def number(config: ModelConfig, name: str) -> float:
    """Return a positive number."""
    value = config.require(name)
    valid = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not valid or not 0 < value <= sys.float_info.max:
        raise refuse(config, name, "needs a positive number")
    return float(value)


def optional_number(config: ModelConfig, name: str) -> float | None:
    """Return a positive number, or None for null."""
    return None if config.get(name) is None else number(config, name)


def optional_size(config: ModelConfig, name: str) -> int | None:
    """Return a positive integer, or None for null."""
    return None if config.get(name) is None else config.size(name)


def mapping(config: ModelConfig, name: str) -> Mapping[str, Any]:
    """Return an object, empty for null."""
    value = config.get(name, {})
    if not isinstance(value, Mapping):
        raise refuse(config, name, "needs an object")
    return value


def count(config: ModelConfig, name: str) -> int:
    """Return an integer of at least 0."""
    value = config.require(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refuse(config, name, "needs an integer of at least 0")
    return value and config.size(name)  # which bounds it


def activation(config: ModelConfig, name: str, known: Mapping[str, str] = ACTIVATIONS) -> str:
    """Return the activation's name in specifications."""
    value = config.require(name)
    if not isinstance(value, str) or value not in known:
        raise refuse(config, name, f"knows only {', '.join(known)}")
    return known[value]


def head_dim(config: ModelConfig) -> int:
    """Return channels per head: said, or the hidden size divided among the heads."""
    heads, hidden_size = config.size("num_attention_heads"), config.size("hidden_size")
    if config.get("head_dim") is None and heads > hidden_size:
        raise refuse(config, "num_attention_heads", f"has a hidden size of {hidden_size}")
    return config.size("head_dim", hidden_size // heads)


def layer_types(
    config: ModelConfig, default: Callable[[int], str], known: Sequence[str] = (FULL, SLIDING)
) -> list[str]:
    """Return `layer_types`, each a known one, or the family's rule by layer index without it."""
    count = config.size("num_hidden_layers")
    types = config.get("layer_types") or [default(i) for i in range(count)]
    if not isinstance(types, list) or len(types) != count:
        raise refuse(config, "layer_types", f"needs one entry for each of {count} layers")
    if not all(kind in known for kind in types):
        *others, last = known
        raise refuse(config, "layer_types", f"knows only {', '.join(others)} and {last}")
    return types


def layer_specs(
    config: ModelConfig,
    ctx: BuildContext,
    types: Sequence[str] | None = None,
    window: int | None = None,
    *,
    partial_rotary: bool = False,
    **rotation_options: Any,
) -> tuple[LayerSpec, ...]:
    """Describe the layers.

    Args:
        types: Type of each layer; default: all of full attention.
        window: Window of the sliding layers.
        partial_rotary: The family may rotate fewer channels than a head has.
        rotation_options: See `Rotation.from_config`.
    """
    types = types if types is not None else layer_types(config, lambda i: FULL)
    if SLIDING in types and window is None:
        raise refuse(config, "sliding_window", f"has layers of type {SLIDING}")
    dim = head_dim(config)
    rotations = {
        kind: Rotation.from_config(
            config.values, dim, ctx.max_model_len, layer_type=kind, **rotation_options
        )
        for kind in sorted(set(types))
    }
    if not partial_rotary and any(r.rotary_dim != dim for r in rotations.values()):
        raise refuse(config, "partial_rotary_factor", "rotates whole heads only")
    return tuple(LayerSpec(rotations[t], window if t == SLIDING else None) for t in types)


def decoder_spec(
    config: ModelConfig, layers: tuple[LayerSpec, ...], **differences: Any
) -> DecoderSpec:
    """Describe a decoder of Llama's shape, changed by a family's differences.

    Raises:
        CheckpointError: A value is missing, malformed or not supported.
    """
    if config.get("is_causal", True) is not True:
        raise refuse(config, "is_causal", "attends to earlier tokens only")
    num_heads = config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise refuse(config, "num_key_value_heads", f"has {num_heads} query heads to share them")
    common: dict[str, Callable[[], Any]] = {
        "vocab_size": lambda: config.size("vocab_size"),
        "hidden_size": lambda: config.size("hidden_size"),
        "intermediate_size": lambda: config.size("intermediate_size"),
        "num_heads": lambda: num_heads,
        "num_kv_heads": lambda: num_kv_heads,
        "head_dim": lambda: head_dim(config),
        "layers": lambda: layers,
        "norm_eps": lambda: number(config, "rms_norm_eps"),
        "attention_scale": lambda: head_dim(config) ** -0.5,
        "tied": lambda: flag(config, "tie_word_embeddings"),
        "generates": lambda: not re.search(r"(?<!LMHead)Model$", config.architecture),
        "activation": lambda: activation(config, "hidden_act"),
    }
    read = {name: value() for name, value in common.items() if name not in differences}
    return DecoderSpec(**read, **differences)


def unused_layers(config: ModelConfig, spec: DecoderSpec, key: str) -> DecoderSpec:
    """Declare layers unused that a checkpoint has behind the decoder's, `key` of them."""
    return replace(spec, further_layers=count(config, key))


def interleaved(layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Rotate pairs of neighboring channels instead of those half a head apart."""
    return tuple(
        layer
        if layer.rotation is None
        else replace(layer, rotation=replace(layer.rotation, interleaved=True))
        for layer in layers
    )


def rope_key(config: ModelConfig) -> str:
    """Return the key of a file's parameters of rotation."""
    return "rope_parameters" if config.get("rope_scaling") is None else "rope_scaling"


def rope_of(config: ModelConfig) -> ModelConfig:
    """Return the parameters of rotation as values of their own."""
    return replace(config, values=mapping(config, rope_key(config)))


def with_rope(config: ModelConfig, rope: Mapping[str, Any]) -> ModelConfig:
    """Fill in how a file rotates that does not say it."""
    if rope_of(config).values:
        return config
    return replace(config, values={**config.values, "rope_parameters": dict(rope)})


def with_temperature(config: ModelConfig, layers: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """Let queries grow with their position, as the parameters of rotation say."""
    rope, beta, length = rope_of(config), "llama_4_scaling_beta", "original_max_position_embeddings"
    scale = rope.get(beta)
    if scale is None:
        return layers
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 <= scale < 100:
        raise refuse(rope, beta, "needs a number of at least 0, below 100")
    temperature = Temperature(float(scale), rope.size(length), 0)
    return tuple(replace(layer, temperature=temperature) for layer in layers)
