"""Candidates `padded` of slots `attention` and `rotary_and_cache`: values narrower than keys, by
the kernels for heads of one width; see `hotshoe.slots.narrow`."""

from __future__ import annotations

from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
    KVLayout,
    RotaryAndCacheSpec,
    Verdict,
    narrow,
)
from hotshoe_triton import attention, rotary


def supports(spec: AttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for heads of one width."""
    return narrow.judge(spec, attention.supports(narrow.even(spec), facts))


def supports_writing(spec: RotaryAndCacheSpec, facts: DeviceFacts) -> Verdict:
    """Judge as for heads of one width, and the layout."""
    return narrow.judge(spec, rotary.supports(narrow.even(spec), facts))


def declared_layout(spec: AttentionSpec, facts: DeviceFacts) -> KVLayout:
    """Say which layout the operation for a specification reads."""
    return narrow.with_room(attention.declared_layout(narrow.even(spec), facts))


class Attention(attention.Attention):
    """See `hotshoe.slots.AttentionOp`."""

    def __init__(self, spec: AttentionSpec, facts: DeviceFacts) -> None:
        super().__init__(narrow.even(spec), facts)
        self.layout, self._narrow = declared_layout(spec, facts), spec

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: AttentionMetadata, sinks: Tensor | None
    ) -> Tensor:
        return narrow.narrowed(super().__call__(q, cache, prepared, sinks), self._narrow)


class RotaryAndCache(rotary.RotaryAndCache):
    """See `hotshoe.slots.RotaryAndCacheOp`."""

    def __init__(self, spec: RotaryAndCacheSpec, facts: DeviceFacts) -> None:
        super().__init__(narrow.even(spec), facts)
        self._narrow = spec

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        cache: Tensor,
        slot_mapping: Tensor,
        qk_norm: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        wide = narrow.widened(qkv, self._narrow)
        return super().__call__(wide, positions, cos_sin, cache, slot_mapping, qk_norm)
