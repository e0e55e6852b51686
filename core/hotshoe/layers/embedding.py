"""Token embedding behind slot `embedding`."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.weights import Place
from hotshoe.slots import EmbeddingOp, EmbeddingSpec, renewed


class Embedding:
    """Row gather; keeps the checkpoint's tensor itself where type and device already agree.

    Args:
        ctx: The build context.
        name: Checkpoint prefix.
        num_embeddings, size: Table shape.
        scale: Factor on every row (Gemma, Granite).
    """

    def __init__(
        self, ctx: BuildContext, name: str, num_embeddings: int, size: int, scale: float = 1.0
    ) -> None:
        spec = EmbeddingSpec(num_embeddings, size, ctx.dtype, scale)
        self._op: EmbeddingOp = ctx.selector.choose("embedding", spec)
        self._place = (ctx.device, ctx.torch_dtype)
        self._table = torch.empty(0)
        ctx.weight_bytes.append(lambda: self._table.nbytes)
        holder = ctx.holder("embedding", spec, ctx.dtype, self)
        place = Place(holder, "weight", (0, num_embeddings), ())
        ctx.weights.expect(f"{name}.weight", (num_embeddings, size), self._take, place=place)

    def _take(self, tensor: Tensor) -> None:
        # At first the checkpoint's own pages, where they serve: writing to them makes them private.
        self._table = renewed(self._table, tensor.to(*self._place))

    def state(self) -> dict[str, Tensor]:
        """Return the table [num_embeddings, size]."""
        return {"weight": self._table} if self._table.numel() else {}

    def __call__(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, size] for ids [num_tokens] int32."""
        return self._op(ids, self._table)
