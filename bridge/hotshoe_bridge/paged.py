"""Attention over the blocks of a host's own cache: the host hands out ids, a candidate the layout.

A host that gives each layer one piece of memory, and addresses it by block ids alone, need not know
how a block is laid out. So a candidate's own layout lies in the host's memory, and nothing is
copied. What else reads the host's blocks, such as its transfers, would have to know: refuse those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hotshoe.slots import AttentionSpec, CacheView, RotaryAndCacheSpec, StepShape
from hotshoe_bridge.operations import Operations


@dataclass(slots=True)
class Step:
    """One step of a host, for all layers that share block tables."""

    shape: StepShape
    view: CacheView
    num_tokens: int
    _prepared: dict[AttentionSpec, Any] = field(default_factory=dict)

    def prepared(self, spec: AttentionSpec, op: Any) -> Any:
        """Let an operation plan the step, once for layers of one specification."""
        if spec not in self._prepared:
            self._prepared[spec] = op.prepare(self.shape, self.view)
        return self._prepared[spec]


def reader_and_writer(spec: AttentionSpec, choose: Callable[[str, Any], Any]) -> tuple[Any, Any]:
    """Choose attention, and what writes keys and values in the layout that it reads."""
    op = choose("attention", spec)
    sizes = (spec.num_kv_heads, spec.num_kv_heads, spec.head_dim, 0)
    kinds = (spec.dtype, spec.kv_dtype, spec.block_size, op.layout)
    return op, choose("rotary_and_cache", RotaryAndCacheSpec(*sizes, *kinds))


def write(writer: Any, k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write rows [tokens, heads, head_dim]; the writer wants queries too, which nobody reads."""
    qkv = torch.cat([part.flatten(1) for part in (k, k, v)], 1)
    positions = torch.zeros(len(k), dtype=torch.int32, device=k.device)
    writer(qkv, positions, None, cache, slots, None)


class Paged:
    """One layer's attention, over memory of a host.

    Args:
        spec: Of the layer; `block_size` is the host's.
        operations: Of a platform whose tensors lie where the host's do.
        mixed: Blocks of the same memory are of layers of other kinds, too.

    Raises:
        ValueError: The chosen candidate cannot read a cache of mixed blocks.
    """

    def __init__(self, spec: AttentionSpec, operations: Operations, mixed: bool = False) -> None:
        self.spec = spec
        self._op, self._writer = reader_and_writer(spec, operations.choose)
        self._memory: Tensor | None = None
        self._numel = spec.block_size * spec.num_kv_heads * spec.head_dim
        # Kernels that go by strides find keys and values of a block side by side; others find all
        # keys before all values, so that a block id means no piece of memory of its own.
        self._together = self._op.layout.gap > 0
        if mixed and not self._together:
            raise ValueError(
                "hotshoe-bridge: attention's candidate wants all keys before all values, which "
                "blocks that are also of layers with states rule out; force another candidate"
            )

    def blocks(self, memory: Tensor) -> Tensor:
        """View memory of a host, whose first dimension is blocks, as [2, num_blocks, numel].

        The same view for the same memory: kernels keep its addresses.

        Raises:
            ValueError: It does not hold exactly keys and values, or is not in one piece.
        """
        if memory is not self._memory:
            self._view, self._memory = self._viewed(memory), memory
        return self._view

    def _viewed(self, memory: Tensor) -> Tensor:
        blocks = len(memory)
        if not memory.is_contiguous() or memory.numel() != 2 * blocks * self._numel:
            raise ValueError(
                f"hotshoe-bridge: the cache is {tuple(memory.shape)} with strides "
                f"{memory.stride()}, but {2 * self._numel} numbers a block in one piece are meant; "
                "choose the host's own attention for this model"
            )
        if self._together:
            return memory.view(blocks, 2, self._numel).transpose(0, 1)
        return memory.view(2, blocks, self._numel)

    def write(self, k: Tensor, v: Tensor, memory: Tensor, slots: Tensor) -> None:
        """Write keys and values [tokens, heads, head_dim] at int32 slots."""
        write(self._writer, k, v, self.blocks(memory), slots)

    def __call__(self, q: Tensor, memory: Tensor, step: Step, sinks: Tensor | None) -> Tensor:
        """Attend with q [tokens, heads, head_dim]; return [tokens, heads, head_dim]."""
        prepared = step.prepared(self.spec, self._op)
        y: Tensor = self._op(q, self.blocks(memory), prepared, sinks)
        return y.view(q.shape)
