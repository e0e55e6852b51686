"""Rotary embeddings: which frequencies a configuration means, and the table of cosines and sines.

`Rotation.from_config` reads both spellings of configuration files, `rope_parameters` (also one per
layer type) and the older `rope_theta` with `rope_scaling`; `Rotary.build` makes the table. All in
float64, rounded once. Model builders call this; kernels only read the table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError, MemoryLimitError
from hotshoe.layers.context import BuildContext
from hotshoe.layers.weights import Holder

DEFAULT_THETA = 10_000.0
#: Positions whose angles are computed at once.
CHUNK = 4096
#: A table may take an eighth of a device's memory: weights and KV cache need the rest.
MEMORY_SHARE = 8
ALIASES = {"su": "longrope"}


@dataclass(frozen=True, slots=True)
class Rotation:
    """What is rotated and how fast; hashable, so that layers of equal rotation share a table.

    Two variants depend on the length of a sequence, and a KV cache cannot be rotated again when a
    sequence grows. They are fixed once per engine, by its `max_model_len`:

    - dynamic: the base is that of a sequence of `max_model_len` tokens. Up to
      `max_position_embeddings` this is the unscaled base, as in transformers; beyond it,
      transformers instead recomputes the base from step to step, keeping older keys as they were.
    - longrope: `long_factor` when `max_model_len` exceeds `original_max_position_embeddings`, else
      `short_factor`. transformers decides by the longest sequence of the batch, so that a short
      prompt agrees with it exactly where `max_model_len` is set to the original length.

    Attributes:
        inv_freq: Radians per position of each pair of channels, float64.
        attention_factor: Multiplies cosines and sines (YaRN, LongRoPE).
        interleaved: Pairs are (2i, 2i+1) rather than (i, i + rotary_dim/2).
        learned: Checkpoint name of a tensor with a number for each pair, by whose exponential that
            pair turns faster; None for none. See `learned`.
    """

    inv_freq: tuple[float, ...]
    attention_factor: float = 1.0
    interleaved: bool = False
    learned: str | None = None

    @property
    def rotary_dim(self) -> int:
        """The leading channels that are rotated."""
        return 2 * len(self.inv_freq)

    @classmethod
    def from_config(
        cls,
        values: Mapping[str, Any],
        head_dim: int,
        max_model_len: int,
        *,
        layer_type: str | None = None,
        default_theta: float = DEFAULT_THETA,
    ) -> Rotation:
        """Read config.json's values, `max_position_embeddings` among them.

        Args:
            values: The configuration.
            head_dim: Channels per head.
            max_model_len: Longest sequence of this engine.
            layer_type: Key of `rope_parameters` where it holds one entry per type of layer.
            default_theta: The architecture's base when the file gives none.

        Raises:
            CheckpointError: An unknown type, or a missing or malformed key; both named.
        """
        rope = _Rope.read(values, head_dim, max_model_len, layer_type, default_theta)
        try:
            inv_freq, attention_factor = VARIANTS[rope.kind](rope)
        except (ArithmeticError, ValueError) as error:  # each value is possible, all together not
            raise CheckpointError(
                f"config.json: rope_type {rope.kind!r} cannot be computed for a rope_theta of "
                f"{rope.theta:g}, {rope.dim} channels and its other values: {error}"
            ) from None
        return cls(tuple(inv_freq.tolist()), attention_factor)


@dataclass(frozen=True, slots=True)
class Rotary:
    """A rotation's table: [max_position, rotary_dim] float32, cosines then sines."""

    table: Tensor
    rotary_dim: int
    interleaved: bool = False

    @classmethod
    def build(
        cls, rotation: Rotation, num_positions: int, device: str, memory_bytes: int
    ) -> Rotary:
        """Compute the table for positions 0 to num_positions - 1.

        Args:
            rotation: How fast each pair of channels turns.
            num_positions: The engine's `max_model_len`.
            device: Where the table is kept.
            memory_bytes: What the device has in all.

        Raises:
            MemoryLimitError: The table would take more than an eighth of the memory.
        """
        table_bytes = num_positions * rotation.rotary_dim * 4
        if table_bytes * MEMORY_SHARE > memory_bytes:
            raise MemoryLimitError(
                f"the rotary table of {num_positions} positions takes "
                f"{table_bytes / 2**30:.1f} GiB, more than 1/{MEMORY_SHARE} of the device's "
                f"{memory_bytes / 2**30:.1f} GiB; lower --max-model-len"
            )
        inv_freq = torch.tensor(rotation.inv_freq, dtype=torch.float64)
        table = rotary_table(inv_freq, num_positions, rotation.attention_factor)
        return cls(table.to(device), rotation.rotary_dim, rotation.interleaved)


def learned(ctx: BuildContext, rotation: Rotation, rotary: Rotary) -> Rotary:
    """Have the checkpoint say how much faster pairs turn, where the rotation names such a tensor.

    Args:
        ctx: The build context.
        rotation: Of the table.
        rotary: Its table is written anew, in place, whenever the tensor comes.

    Returns:
        The same `Rotary`. Operations read its table, and so need not know of this.
    """
    if rotation.learned is None:
        return rotary
    logs = torch.zeros(len(rotation.inv_freq), device=ctx.device)

    def take(tensor: Tensor) -> None:
        logs.copy_(tensor)
        rates = tensor.cpu().double().exp() * torch.tensor(rotation.inv_freq, dtype=torch.float64)
        table = rotary.table
        table.copy_(rotary_table(rates, len(table), rotation.attention_factor))

    holder = Holder("rotary_and_cache", "table", "float32", lambda: {"logs": logs})
    ctx.expect_alone(holder, rotation.learned, len(logs), take, "logs")
    return rotary


def rotary_table(inv_freq: Tensor, num_positions: int, attention_factor: float = 1.0) -> Tensor:
    """Return the table of float64 inverse frequencies [rotary_dim / 2]."""
    half = inv_freq.shape[0]
    table = torch.empty(num_positions, 2 * half, dtype=torch.float32)
    for begin in range(0, num_positions, CHUNK):  # so that no second table is ever whole
        part = table[begin : begin + CHUNK]
        positions = torch.arange(begin, begin + part.shape[0], dtype=torch.float64)
        angles = torch.outer(positions, inv_freq.double())
        part[:, :half] = angles.cos().mul_(attention_factor)
        part[:, half:] = angles.sin_().mul_(attention_factor)
    return table


@dataclass(frozen=True, slots=True)
class _Rope:
    """One layer type's parameters in one spelling."""

    kind: str
    parameters: Mapping[str, Any]
    theta: float
    dim: int
    head_dim: int
    trained_len: int
    max_model_len: int

    @classmethod
    def read(
        cls,
        values: Mapping[str, Any],
        head_dim: int,
        max_model_len: int,
        layer_type: str | None,
        default_theta: float,
    ) -> _Rope:
        parameters = _select(values, layer_type)
        for key in ("rope_theta", "partial_rotary_factor"):
            if parameters.get(key) is None:
                parameters[key] = values.get(key)
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        known = isinstance(kind, str) and (kind in VARIANTS or kind in ALIASES)
        if not known:
            raise CheckpointError(
                f"config.json: rope_type {kind!r} is unknown; known: {', '.join(sorted(VARIANTS))}"
            )
        trained_len = _number(values, "max_position_embeddings", None)
        # A top-level original length overrules that of the parameters (Phi-3).
        outer = values.get("original_max_position_embeddings")
        if outer is not None or parameters.get("original_max_position_embeddings") is None:
            parameters["original_max_position_embeddings"] = outer or trained_len
        dim = int(head_dim * _number(parameters, "partial_rotary_factor", 1.0))
        if dim % 2 or not 0 < dim <= head_dim:
            factor = parameters["partial_rotary_factor"]
            asked = "head_dim" if factor is None else f"partial_rotary_factor {factor}"
            raise CheckpointError(
                f"config.json: {asked} rotates {dim} of {head_dim} channels, which go by pairs"
            )
        theta = _number(parameters, "rope_theta", default_theta)
        kind = ALIASES.get(kind, kind)
        return cls(kind, parameters, theta, dim, head_dim, int(trained_len), max_model_len)

    def number(self, key: str, default: float | None = None) -> float:
        return _number(self.parameters, key, default)

    def factors(self, key: str) -> Tensor:
        """Return a list of one factor per pair of channels."""
        value = self.parameters.get(key)
        if not isinstance(value, list) or len(value) != self.dim // 2:
            found = f"{len(value)} entries" if isinstance(value, list) else repr(value)
            raise CheckpointError(
                f"config.json: {key} of rope_type {self.kind!r} must be a list of "
                f"{self.dim // 2} numbers, not {found}"
            )
        listed = [_number({key: item}, key, None) for item in value]
        return torch.tensor(listed, dtype=torch.float64)

    def plain(self, theta: float | None = None) -> Tensor:
        """Return the unscaled frequencies of a base."""
        exponents = torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim
        return (theta or self.theta) ** -exponents


def _select(values: Mapping[str, Any], layer_type: str | None) -> dict[str, Any]:
    parameters = values.get("rope_scaling") or values.get("rope_parameters") or {}
    nested = isinstance(parameters, Mapping) and any(
        isinstance(entry, Mapping) for entry in parameters.values()
    )
    if nested:
        parameters = parameters.get(layer_type)
    if not isinstance(parameters, Mapping):
        where = f"rope_parameters.{layer_type}" if nested else "rope_parameters"
        raise CheckpointError(f"config.json: {where} must be an object, not {parameters!r}")
    return dict(parameters)


def _number(values: Mapping[str, Any], key: str, default: float | None) -> float:
    value = values.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        raise CheckpointError(f"config.json: the rotary embedding lacks {key!r}")
    valid = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not valid or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"config.json: {key} must be a positive number, not {value!r}")
    return float(value)


def _default(rope: _Rope) -> tuple[Tensor, float]:
    """Source: Su et al. 2021, arXiv:2104.09864."""
    return rope.plain(), 1.0


def _linear(rope: _Rope) -> tuple[Tensor, float]:
    """Positions shrink by `factor`. Source: Chen et al. 2023, arXiv:2306.15595."""
    return rope.plain() / rope.number("factor"), 1.0


def _dynamic(rope: _Rope) -> tuple[Tensor, float]:
    """The base grows with the length ("NTK-aware"). Source: Peng et al. 2023, arXiv:2309.00071."""
    factor = rope.number("factor")
    stretch = max(rope.max_model_len / rope.trained_len, 1.0)
    growth = factor * stretch - (factor - 1)
    return rope.plain(rope.theta * growth ** (rope.dim / (rope.dim - 2))), 1.0


def _yarn(rope: _Rope) -> tuple[Tensor, float]:
    """Slow pairs are interpolated, fast ones kept. Source: Peng et al. 2023, arXiv:2309.00071."""
    factor = rope.number("factor")
    original = rope.number("original_max_position_embeddings")

    def pair_of(turns: float) -> float:
        """Return the (fractional) pair that turns this often over the original length."""
        return rope.dim * math.log(original / (turns * math.tau)) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.number("beta_fast", 32)), pair_of(rope.number("beta_slow", 1))
    if rope.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = (high - low) or 0.001
    interpolated = ((torch.arange(rope.dim // 2, dtype=torch.float64) - low) / width).clamp(0, 1)
    plain = rope.plain()
    return plain / factor * interpolated + plain * (1 - interpolated), _yarn_attention(rope, factor)


def _yarn_attention(rope: _Rope, factor: float) -> float:
    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.parameters.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if rope.parameters.get("mscale") and rope.parameters.get("mscale_all_dim"):
        return temperature(rope.number("mscale")) / temperature(rope.number("mscale_all_dim"))
    return temperature(1.0)


def _llama3(rope: _Rope) -> tuple[Tensor, float]:
    """Long wavelengths are stretched by `factor`, with a smooth passage between the two limits.

    Source: Llama 3.1's model card and reference implementation.
    """
    factor = rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high < low:
        raise CheckpointError(
            f"config.json: high_freq_factor {high} must be at least low_freq_factor {low}"
        )
    plain = rope.plain()
    turns = rope.number("original_max_position_embeddings") * plain / math.tau
    if high == low:  # as in Llama 4 Scout: no passage
        kept = (turns >= low).double()
    else:
        kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / factor * (1 - kept), 1.0


def _longrope(rope: _Rope) -> tuple[Tensor, float]:
    """Every pair has a factor of its own. Source: Ding et al. 2024, arXiv:2402.13753."""
    original = rope.number("original_max_position_embeddings")
    factors = {key: rope.factors(key) for key in ("short_factor", "long_factor")}
    chosen = factors["long_factor" if rope.max_model_len > original else "short_factor"]
    scale = rope.number("factor", rope.trained_len / original)
    attention = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    return rope.plain() / chosen, rope.number("attention_factor", attention)


def _proportional(rope: _Rope) -> tuple[Tensor, float]:
    """Pairs lie half a head apart; the first of them turn as in a head that turns whole, the others
    stand still. Source: Gemma 4's configuration and weights."""
    turning = torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.head_dim
    inv_freq = torch.zeros(rope.head_dim // 2, dtype=torch.float64)
    inv_freq[: rope.dim // 2] = rope.theta**-turning / rope.number("factor", 1.0)
    return inv_freq, 1.0


VARIANTS: dict[str, Callable[[_Rope], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
    "proportional": _proportional,
}
