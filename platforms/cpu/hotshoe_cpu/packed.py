"""Candidate `native` of slot `packed_attention`: the kernels of `rotary.py` and `attention.py`.

Keys and values of a step go to memory in blocks, whose layout the kernel multiplies, as those of a
cache do. The next call overwrites them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import (
    AttentionMetadata,
    AttentionSpec,
    CacheView,
    PackedAttentionSpec,
    RotaryAndCacheSpec,
    StepShape,
    Verdict,
    whole_step,
)
from hotshoe.slots.reference import accepts
from hotshoe_cpu import attention
from hotshoe_cpu.kv import layout
from hotshoe_cpu.native import kernels
from hotshoe_cpu.rotary import RotaryAndCache

BLOCK_SIZE = 64
#: More tokens than a request has.
ALL = 2**30


@dataclass(frozen=True, slots=True)
class Plan:
    """A step whose requests own consecutive blocks.

    Attributes:
        num_blocks: Of all requests together.
        step: As attention over a cache sees it.
        num_keys: See `PackedAttentionOp`.
    """

    num_blocks: int
    step: AttentionMetadata
    num_keys: Tensor | None


def supports(spec: PackedAttentionSpec, facts: DeviceFacts) -> Verdict:
    """Judge as `attention.py`, and what no candidate serves."""
    verdict = accepts.supports(spec, facts)
    return attention.supports(paged(spec), facts) if verdict.accepted else verdict


def paged(spec: PackedAttentionSpec) -> AttentionSpec:
    """Return the causal attention that has the same earlier keys."""
    sizes = spec.num_heads, spec.num_kv_heads, spec.head_dim
    window = None if spec.window is None else spec.window + 1
    return AttentionSpec(*sizes, spec.dtype, spec.dtype, BLOCK_SIZE, spec.scale, window)


class PackedAttention:
    """See `hotshoe.slots.PackedAttentionOp`."""

    def __init__(self, spec: PackedAttentionSpec, facts: DeviceFacts) -> None:
        sizes = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self._attend = attention.Attention(paged(spec), facts)
        ahead = ALL if spec.window is None else spec.window
        self._kernel = partial(kernels(facts).packed_attention, ahead)
        self._span = spec.bias_span or 0
        types = spec.dtype, spec.dtype
        writes = RotaryAndCacheSpec(
            *sizes, spec.rotary_dim, *types, BLOCK_SIZE, layout(spec.dtype, self._attend.layout.gap)
        )
        self._write = RotaryAndCache(writes, facts)
        self._numel = BLOCK_SIZE * spec.num_kv_heads * spec.head_dim
        self._stride = self._numel + self._attend.layout.gap
        self._blocks = torch.empty(0)

    def prepare(self, shape: StepShape, num_keys: Tensor | None = None) -> Plan:
        """Give every request its blocks."""
        starts, counts = shape.query_start_loc, shape.query_start_loc.diff()
        sizes = (counts + BLOCK_SIZE - 1) // BLOCK_SIZE
        first = sizes.cumsum(0, dtype=torch.int32) - sizes
        number = int(sizes.sum())
        columns = torch.arange(-(-shape.max_seq_len // BLOCK_SIZE), dtype=torch.int32)
        table = (first[:, None] + columns).clamp_(max=number - 1)
        tokens = torch.arange(int(starts[-1]), dtype=torch.int32)
        slots = tokens + torch.repeat_interleave(first * BLOCK_SIZE - starts[:-1], counts)
        return Plan(number, whole_step(shape, CacheView(table, slots)), num_keys)

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        prepared: Plan,
        bias: Tensor | None = None,
    ) -> Tensor:
        blocks = self._room(prepared.num_blocks, qkv.dtype)
        slots = prepared.step.slot_mapping
        q = self._write(qkv, positions, cos_sin, blocks, slots, None)
        more = [0 if t is None else t.data_ptr() for t in (bias, prepared.num_keys)]
        self._attend.kernel = partial(self._kernel, more[0], self._span, more[1])
        return self._attend(q, blocks, prepared.step, None)

    def _room(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return memory for so many blocks: that of the last call, where it suffices."""
        if count > self._blocks.size(-2 if self._blocks.dim() > 1 else 0):
            self._blocks = torch.empty(2, count, self._stride, dtype=dtype)[..., : self._numel]
        return self._blocks
