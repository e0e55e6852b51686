"""Attention of encoders whose queries and keys also meet distances, for all layers of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, Embedding, ForwardBatch, LayerNorm, Section
from hotshoe_models.disentangled import DisentangledAttention, Group
from hotshoe_models.encoder_spec import EncoderLayer, EncoderSpec, Relative


class RelativeAttention:
    """The one operation, and the rows of distances. A layer's own matrices project these.

    Args:
        spec, relative: The architecture, and its rows.
        ctx: The build context.

    Raises:
        CheckpointError: By `__init__`: tokens of queries are not to be seen.
    """

    def __init__(self, spec: EncoderSpec, relative: Relative, ctx: BuildContext) -> None:
        if ctx.late is not None and ctx.late.unseen is not None:
            raise CheckpointError(
                "this encoder attends to all tokens, but its files say that those which fill "
                "queries up are not attended to"
            )
        heads = ctx.split("attention heads", Section(spec.num_heads))
        count = 2 * relative.distances.span
        self._op = DisentangledAttention(heads.size, spec.channels, relative.distances, ctx.device)
        self._embed = Embedding(ctx, relative.name, count, spec.hidden_size)
        self._numbers = torch.arange(count, dtype=torch.int32, device=ctx.device)
        self._norm = None
        if relative.norm is not None:
            self._norm = LayerNorm(ctx, relative.norm, spec.hidden_size, spec.norm_eps)

    def add(self, layer: EncoderLayer) -> None:
        """Take a layer, which asks for nothing of its own."""
        assert layer.rotation is None and layer.window is None, "distances are all it knows"

    def over(self, batch: ForwardBatch, num_keys: Tensor | None) -> RelativeStep:
        """Plan a step, once for all layers."""
        rows = self._embed(self._numbers)
        if self._norm is not None:
            rows = self._norm(rows)
        return RelativeStep(self._op, self._op.prepare(batch.shape), rows)


@dataclass(frozen=True, slots=True)
class RelativeStep:
    """The attention of one step."""

    op: DisentangledAttention
    plan: list[Group]
    rows: Tensor

    def __call__(self, asked: None, project: Callable[[Tensor], Tensor], taken: Tensor) -> Tensor:
        return self.op(project(taken), project(self.rows), self.plan)
