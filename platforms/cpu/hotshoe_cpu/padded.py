"""Candidates `padded` of slots `attention` and `rotary_and_cache`: values narrower than keys.

The kernels know heads of one width. So the cache has room for values as wide as keys, zeros fill
it, and what attention makes of them is cut off. A sixth of the cache is empty so where values have
two thirds of the channels of keys.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
    KVLayout,
    RotaryAndCacheSpec,
    Verdict,
    accept,
    refuse,
)
from hotshoe_cpu import attention, rotary

#: Behind whoever reads values as narrow as they are.
SCORE = 50


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for heads of one width."""
    return _judge(spec, attention.supports(_even(spec), facts))


def supports_writing(spec: RotaryAndCacheSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for heads of one width, and the layout."""
    if not spec.layout.wide_values:
        return refuse(f"layout {spec.layout.name} has no room for values as wide as keys")
    return _judge(spec, rotary.supports(_even_writer(spec), facts))


def declared_layout(spec: AttentionSpec, facts: DeviceFacts) -> KVLayout:
    """Say which layout the operation for a specification reads."""
    return replace(attention.declared_layout(_even(spec), facts), wide_values=True)


def _judge(spec: AttentionSpec | RotaryAndCacheSpec, verdict: Verdict) -> Verdict:
    v_head_dim, head_dim = spec.v_head_dim, spec.head_dim
    if v_head_dim is None or not 0 < v_head_dim < head_dim:
        return refuse("values have as many channels as keys")
    if spec.kv_dtype != spec.dtype:
        return refuse(f"kv_dtype {spec.kv_dtype} differs from dtype {spec.dtype}")
    if not verdict.accepted:
        return verdict
    return accept(SCORE, f"{verdict.reason}; values of {v_head_dim} channels take {head_dim}")


def _even(spec: AttentionSpec) -> AttentionSpec:
    return replace(spec, v_head_dim=None)


def _even_writer(spec: RotaryAndCacheSpec) -> RotaryAndCacheSpec:
    return replace(spec, v_head_dim=None, layout=replace(spec.layout, wide_values=False))


class Attention(attention.Attention):
    """See `hotshoe.slots.AttentionOp`."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(_even(spec), facts)
        self.layout = declared_layout(spec, facts)
        self._dims = (spec.head_dim, spec.value_dim)

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        out = super().__call__(q, cache, prepared, sinks)
        room, dim = self._dims
        return out.view(len(out), -1, room)[..., :dim].flatten(1)


class RotaryAndCache(rotary.RotaryAndCache):
    """See `hotshoe.slots.RotaryAndCacheOp`."""

    def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
        super().__init__(_even_writer(spec), facts)
        self._value_shape = (spec.num_kv_heads, spec.value_dim)
        self._missing = spec.head_dim - spec.value_dim

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        slot_mapping: Tensor,
        qk_norm: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        heads, dim = self._value_shape
        values = qkv[:, -heads * dim :].view(-1, heads, dim)
        wide = F.pad(values, (0, self._missing)).flatten(1)
        padded = torch.cat((qkv[:, : -heads * dim], wide), dim=1)
        return super().__call__(padded, positions, cos_sin, cache, slot_mapping, qk_norm)
