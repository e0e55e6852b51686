"""Slot `tree_attention`: attention of steps whose last tokens are nodes of trees.

A slot of its own, so that steps without trees keep whatever serves `attention`, and its cache's
layout. Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hotshoe.slots.specs import AttentionSpec, KVLayout

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import AttentionMetadata


@dataclass(frozen=True, slots=True)
class TreeAttentionSpec:
    """Paged attention in which nodes see the tokens before their tree, their ancestors, and
    themselves. All other tokens see what they see in `AttentionSpec`.

    Attributes:
        attention: The layer's heads, its cache, and its scores.
        layout: Of that cache, which another operation has chosen.
    """

    attention: AttentionSpec
    layout: KVLayout

    @property
    def dtype(self) -> str:
        """The element type of queries and results."""
        return self.attention.dtype


def tree_refusal(spec: TreeAttentionSpec, layout: KVLayout) -> str:
    """Return why a kernel that reads a layout does not serve a specification; empty if it does."""
    own = spec.attention
    reasons = {
        f"layout {spec.layout.name} is not {layout.name}, as read here": spec.layout != layout,
        "nodes of trees have no distances, as window and alibi count them": own.window is not None
        or own.alibi is not None,
        "kv_scales of a checkpoint are not known in trees": own.kv_scales == "tensor",
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


@dataclass(frozen=True, slots=True)
class TreeNodes:
    """Which of a step's tokens are nodes of trees, and which of these see each other.

    Attributes:
        counts: [num_reqs] int32, how many of each request's last tokens are nodes, at most 64.
        ancestors: [num_tokens] int64. Bit j says that a node sees node j of its own request, which
            is itself or comes before it; 0 for tokens that are no nodes.
    """

    counts: Tensor
    ancestors: Tensor


class TreeAttentionOp(Protocol):
    """Attention with trees, over a cache of another operation's layout."""

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: AttentionMetadata,
        nodes: TreeNodes,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend.

        Args:
            q, cache, sinks: As in `AttentionOp`.
            prepared: The step as it is, of `whole_step`.
            nodes: Which tokens are nodes. The place of a node in the cache is its number behind
                the tokens before the tree, whatever its position.

        Returns:
            [num_tokens, num_heads * v_head_dim], model dtype, contiguous.
        """
        ...
