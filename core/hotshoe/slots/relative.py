"""Slot `relative_attention`: attention whose scores have logits of relative positions.

A slot of its own, so that whoever serves `attention` need not know them. Free of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.slots.specs import AttentionSpec, KVLayout

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import AttentionMetadata, CacheView, StepShape


@dataclass(frozen=True, slots=True)
class RelativeAttentionSpec:
    """Paged causal attention, where a score grows by a logit that query and distance make.

    The logit of a query's head for a key d tokens before it is the sum over c of state[c] *
    profile[c, d]; 0 where d is `extent` or more. Source: Inkling, as transformers 5.24 has it.

    Attributes:
        attention: The layer's heads, its cache and its window; no soft cap, sinks or slopes.
        states: Channels of a head's state.
        extent: Distances that have profiles.
    """

    attention: AttentionSpec
    states: int
    extent: int

    @property
    def dtype(self) -> str:
        """The element type of queries, states and results."""
        return self.attention.dtype


class RelativeAttentionOp(Protocol):
    """Attention with logits of relative positions.

    Attributes:
        layout: Of the cache that it reads.
    """

    layout: KVLayout

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Prepare a step, as `AttentionOp.prepare` does."""
        ...

    def __call__(self, q: Tensor, cache: Tensor, prepared: Any, profiles: Tensor) -> Tensor:
        """Attend.

        Args:
            q: [num_tokens, num_heads, head_dim + states], model dtype: a head's query, then its
                state.
            cache, prepared: As in `AttentionOp`.
            profiles: [states, extent] float32.

        Returns:
            [num_tokens, num_heads * v_head_dim], model dtype, contiguous.
        """
        ...


def slices(step: AttentionMetadata, most: int) -> Iterator[tuple[slice, AttentionMetadata]]:
    """Yield a step in slices of up to so many tokens, each as a step of its own, so that what is
    computed for each token stays small."""
    ends = step.query_start_loc
    total = len(step.slot_mapping)
    if total <= most:
        yield slice(None), step
        return
    for first in range(0, total, most):
        last = min(first + most, total)
        later = (ends[1:] - last).clamp(min=0)
        starts, lens = ends.clamp(first, last) - first, (step.seq_lens - later).clamp(min=0)
        yield slice(first, last), replace(step, query_start_loc=starts, seq_lens=lens)
