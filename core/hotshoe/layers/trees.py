"""Attention of a layer in engines whose drafts may be trees: two operations over one cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.slots import (
    AttentionMetadata,
    AttentionOp,
    AttentionSpec,
    CacheView,
    StepShape,
    TreeAttentionOp,
    TreeAttentionSpec,
    TreeNodes,
    whole_step,
)
from hotshoe.types.trees import NoTreesError


@dataclass(frozen=True, slots=True)
class TreeStep:
    """What is prepared of a step with trees."""

    step: AttentionMetadata
    nodes: TreeNodes


class BranchingAttention:
    """See `AttentionOp`; steps with trees go to slot `tree_attention`.

    Args:
        ctx: The build context.
        spec: The layer's.
        attend: Serves steps without trees.

    Raises:
        NoTreesError: The layer has a window.
    """

    def __init__(self, ctx: BuildContext, spec: AttentionSpec, attend: AttentionOp) -> None:
        self.layout = attend.layout
        self._attend = attend
        if spec.window is not None and spec.window < ctx.max_model_len:
            raise NoTreesError(
                "the model has layers with a window, where the nodes of a tree have no places"
            )
        asked = TreeAttentionSpec(replace(spec, window=None), self.layout)
        self._branch: TreeAttentionOp = ctx.selector.choose("tree_attention", asked)

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """See `AttentionOp`."""
        if shape.tree is None:
            return self._attend.prepare(shape, view)
        return TreeStep(whole_step(shape, view), shape.tree)

    def __call__(self, q: Tensor, cache: Tensor, prepared: Any, sinks: Tensor | None) -> Tensor:
        """See `AttentionOp`."""
        if isinstance(prepared, TreeStep):
            return self._branch(q, cache, prepared.step, prepared.nodes, sinks)
        return self._attend(q, cache, prepared, sinks)
