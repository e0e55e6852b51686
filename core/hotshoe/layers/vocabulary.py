"""The two ends of a model that know its vocabulary: token embedding, and logits on every rank.

The embedding is behind slot `embedding`. With tensor parallelism each rank computes its part of the
logits, padded to equal parts, and the ranks gather them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.ends import AdaptedEmbedding, AdaptedLogits
from hotshoe.layers.formats import output_is_plain
from hotshoe.layers.linear import Linear
from hotshoe.layers.matrix import Matrix
from hotshoe.layers.split import split_padded
from hotshoe.layers.weights import HOST, Place
from hotshoe.slots import EmbeddingOp, EmbeddingSpec, renewed


class Embedding:
    """Row gather; keeps the checkpoint's tensor itself where type and device already agree.

    Args:
        ctx: The build context.
        name: Checkpoint prefix.
        num_embeddings, size: Table shape.
        scale: Factor on every row (Gemma, Granite).
        adapts: Adapters may change it.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        num_embeddings: int,
        size: int,
        scale: float = 1.0,
        adapts: bool = False,
    ) -> None:
        spec = EmbeddingSpec(num_embeddings, size, ctx.dtype, scale)
        self._op: EmbeddingOp = ctx.selector.choose("embedding", spec)
        self._place = (ctx.device, ctx.torch_dtype)
        self._table = torch.empty(0)
        ctx.weight_bytes.append(lambda: self._table.nbytes)
        holder = ctx.holder("embedding", spec, ctx.dtype, self)
        place = Place(holder, "weight", (0, num_embeddings), ())
        ctx.weights.expect(f"{name}.weight", (num_embeddings, size), self._take, place=place)
        self._adapted: AdaptedEmbedding | None = None
        if adapts and ctx.adapters is not None:
            self._adapted = AdaptedEmbedding(ctx, name, (num_embeddings, size), scale)

    def _take(self, tensor: Tensor) -> None:
        # At first the checkpoint's own pages, where they serve: writing to them makes them private.
        self._table = renewed(self._table, tensor.to(*self._place))

    def state(self) -> dict[str, Tensor]:
        """Return the table [num_embeddings, size]."""
        return {"weight": self._table} if self._table.numel() else {}

    def __call__(self, ids: Tensor) -> Tensor:
        """Return [num_tokens, size] for ids [num_tokens] int32."""
        y = self._op(ids, self._table)
        if self._adapted is not None:
            self._adapted(y, ids)
        return y


class Logits:
    """logits = hidden W^T + b in float32.

    Args:
        ctx: The build context.
        name: Checkpoint prefix; with tied weights that of the embedding.
        vocab_size, hidden_size: Shape of the matrix.
        quantize: False keeps it out of quantization.
        bias: There is a b.
        adapted: What adapters that change it call it; "" where they may not.
    """

    def __init__(
        self,
        ctx: BuildContext,
        name: str,
        vocab_size: int,
        hidden_size: int,
        *,
        quantize: bool = False,
        bias: bool = False,
        adapted: str = "",
    ) -> None:
        self._vocab_size = vocab_size
        outputs = split_padded(vocab_size, ctx.rank, ctx.size)
        parts = [(name, vocab_size)]
        # Kernels of the host copy a tied matrix anyway; elsewhere packed ones are not measured.
        quantize &= name == (adapted or name) or ctx.selector.judged.device.startswith(HOST.type)
        quantize &= not output_is_plain(ctx.format, name, (vocab_size, hidden_size), adapted)
        matrix = Matrix(ctx, parts, hidden_size, bias=bias, quantize=quantize, outputs=outputs)
        self._linear = Linear(ctx, matrix, out_dtype="float32", adapters=False)
        self._communicator, self._size = ctx.communicator, ctx.size
        self._adapted: AdaptedLogits | None = None
        if adapted and ctx.adapters is not None:
            self._adapted = AdaptedLogits(ctx, adapted, (vocab_size, hidden_size), outputs, bias)
            if name != adapted:
                ctx.adapters.shared.add(name)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [n, hidden_size] to [n, vocab_size] float32, a new tensor."""
        logits = self._linear(hidden)
        if self._adapted is not None:
            self._adapted(logits, hidden)
        if self._communicator is None:
            return logits
        parts = self._communicator.all_gather(logits).view(self._size, *logits.shape)
        ends = range(self._vocab_size, 0, -logits.shape[1])
        return torch.cat([part[:, :end] for part, end in zip(parts, ends, strict=False)], dim=1)
