"""What layers that keep states of sequences have in common: memory for these, and small weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare, give_back
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.lag import Lag, plan_lag
from hotshoe.layers.split import Split
from hotshoe.layers.weights import Place
from hotshoe.slots import (
    CacheView,
    GatedDeltaSpec,
    RgLruSpec,
    SelectiveScanSpec,
    ShortConvSpec,
    StateSpaceSpec,
    StepShape,
    renewed,
)
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.types.cache import CachePart, CacheSpec

Spec = TypeVar("Spec", StateSpaceSpec, SelectiveScanSpec, RgLruSpec, ShortConvSpec, GatedDeltaSpec)


@dataclass(frozen=True, slots=True)
class SmallWeight:
    """A weight that an operation of states takes beside its input.

    Attributes:
        tensors: Checkpoint name, shape and this rank's rows of each tensor, in order.
        exact: It is kept in float32 instead of the model's type.
        read: What makes this rank's rows of a tensor into the weight's.
    """

    tensors: tuple[tuple[str, tuple[int, ...], Split], ...]
    exact: bool = False
    read: Callable[[Tensor], Tensor] = torch.Tensor.contiguous


def decay_rates(logs: Tensor) -> Tensor:
    """Return -exp(A_log), float32."""
    return -torch.exp(logs.float())


class StateLayer(Generic[Spec]):
    """One layer's operation over the states of its sequences.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        slot: The operation's.
        spec: This rank's.
        state: Shape of one sequence's state; None for none but the convolution's last inputs.
        weights: Makes the operation's weights of tensors by name.
    """

    kv_scales: Tensor | None = None

    def __init__(
        self,
        ctx: BuildContext,
        slot: str,
        spec: Spec,
        state: tuple[int, int, int] | None,
        weights: Callable[..., Any],
    ) -> None:
        self.spec: Spec = spec
        self._op = ctx.selector.choose(slot, spec)
        self._drafts = None
        if ctx.drafts:  # whose states go to another block than the one that is read
            self._drafts = ctx.selector.choose(slot, replace(spec, checkpoints="align"))
        self._make = weights
        self._weights: Any = None
        self._held: dict[str, Tensor] = {}
        self._pending: dict[str, list[Tensor | None]] = {}
        self._device, self._dtype = ctx.device, ctx.torch_dtype
        self.cache: tuple[Tensor, ...]
        self._inputs: Tensor | None = None  # of drafts
        conv = (spec.conv_width - 1, spec.conv_size)
        parts: tuple[CachePart, ...] = (CachePart("conv", "td", conv, spec.conv_dtype),)
        if state is not None:
            assert not isinstance(spec, ShortConvSpec)
            parts = (*parts, CachePart("state", "hdn", state, spec.state_dtype))
        self._kept = len(parts)
        if ctx.drafts:
            shape = (ctx.drafts, sum(spec.sections))
            parts = (*parts, CachePart("drafts", "td", shape, spec.dtype))
        self.cache_spec: CacheSpec = CacheSpec(
            "state", spec.block_size, parts, checkpoints=ctx.checkpoints, drafts=ctx.drafts
        )
        self.planner: tuple[Hashable, Prepare] = (spec, self._prepare)
        self.view = 0
        ctx.cache_layers.append(self)
        ctx.weight_bytes.append(lambda: sum(t.nbytes for t in self._held.values()))

    def expect(self, ctx: BuildContext, slot: str, weights: Mapping[str, SmallWeight]) -> None:
        """Ask for the weights, of which this rank keeps its part."""
        holder = ctx.holder(slot, self.spec, ctx.dtype, self)
        for part, weight in weights.items():
            self._pending[part] = [None] * len(weight.tensors)
            names, first = [name for name, _, _ in weight.tensors], 0
            for i, (name, shape, split) in enumerate(weight.tensors):
                rows = (first, first := first + split.size)
                others = tuple(other for other in names if other != name)
                sink = partial(self._take, part, i, weight)
                ctx.weights.expect(name, shape, sink, place=Place(holder, part, rows, others))

    def _take(self, part: str, i: int, weight: SmallWeight, tensor: Tensor) -> None:
        """Keep this rank's rows of a tensor; of a weight's last one make the weight."""
        rows = tensor.flatten(1) if tensor.dim() > 1 and len(tensor) > 1 else tensor.flatten()
        pieces = self._pending[part]
        pieces[i] = torch.cat([rows[own] for own in weight.tensors[i][2].within(0, len(rows))])
        there = [piece for piece in pieces if piece is not None]
        if len(there) < len(pieces):
            return
        dtype = torch.float32 if weight.exact else self._dtype
        fresh = weight.read(torch.cat(there)).to(self._device, dtype, copy=True)
        self._held[part] = renewed(self._held.get(part), fresh)
        pieces[:] = [None] * len(pieces)
        if set(self._held) == set(self._pending):
            self._weights = self._make(**self._held)

    def state(self) -> dict[str, Tensor]:
        """Return the weights of this rank, by the names that the operation has for them."""
        return self._held

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for states, left as it comes: none is read before it is written."""
        held = [self._empty(part, num_blocks) for part in self.cache_spec.parts]
        self.cache, self._inputs = tuple(held[: self._kept]), next(iter(held[self._kept :]), None)

    def _empty(self, part: CachePart, num_blocks: int) -> Tensor:
        shape = (num_blocks, *part.shape)
        return torch.empty(shape, dtype=torch_dtype(part.dtype), device=self._device)

    def share_cache(self, other: StateLayer[Any]) -> None:
        """Use another layer's states, whose blocks have equal parts."""
        self.cache, self._inputs = other.cache, other._inputs

    def cache_memory(self) -> Sequence[Tensor]:
        """Return states, and inputs of drafts."""
        return self.cache if self._inputs is None else (*self.cache, self._inputs)

    def free_cache(self) -> None:
        """Give the memory back, though an operation may remember the tensors."""
        for tensor in self.cache_memory():
            give_back(tensor)
        del self.cache

    def __call__(self, projected: Tensor, batch: ForwardBatch) -> Tensor:
        """Map projected [num_tokens, all sections], which may be overwritten, to
        [num_tokens, inner_size]."""
        if batch.between is not None:
            return batch.between(projected, self._run, self.spec.inner_size)
        return self._run(projected, batch.views)

    def _run(self, projected: Tensor, views: Sequence[CacheView]) -> Tensor:
        return self._run_with(self._weights, projected, views[self.view].prepared)

    def _run_with(self, weights: Any, projected: Tensor, prepared: Any) -> Tensor:
        """Compute a step, or some of its sequences, with these weights in place of the layer's."""
        if isinstance(prepared, Lag):
            assert self._inputs is not None
            calls = (partial(self._compute, weights, op) for op in (self._op, self._drafts))
            return prepared.run(projected, self._inputs, *calls)
        return self._compute(weights, self._op, projected, prepared)

    def _compute(self, weights: Any, operation: Any, projected: Tensor, prepared: Any) -> Tensor:
        assert weights is not None
        out: Tensor = operation(projected, self.cache, prepared, weights)
        return out

    def _prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Have a step prepared, or both calls of one that is behind, or has drafts."""
        if shape.host_drafts is None or self._drafts is None:
            return self._op.prepare(shape, view)
        null = len(self.cache[0]) - 1
        places = self.spec.block_size, self.cache_spec.checkpoints == "none", null
        return plan_lag(shape, view, places, self._op.prepare, self._drafts.prepare)
