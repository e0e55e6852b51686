"""Latent attention layer: a cache of one row per token, and the matrix that makes heads of it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hotshoe.layers.cache import Prepare, give_back
from hotshoe.layers.context import BuildContext, ForwardBatch
from hotshoe.layers.linear import Matrix
from hotshoe.layers.norm import RMSNorm
from hotshoe.layers.rotary import Rotary
from hotshoe.layers.split import Section
from hotshoe.slots import CacheView, MlaAttentionOp, MlaAttentionSpec
from hotshoe.slots.reference.dtypes import torch_dtype
from hotshoe.slots.reference.linear import plain_weight
from hotshoe.types.cache import CachePart, CacheSpec


class LatentAttention:
    """One layer's attention between its projections to q and latents, and the output projection.

    The latents are normed here. Every rank keeps all rows, and the matrix of its own heads.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        spec: The model's heads; `num_heads` is divided among the ranks.
        rotary: The rotation, over `rope_dim` channels.
        up: Checkpoint name of the matrix.
        norm: Checkpoint name of the latents' norm.
        norm_eps: Its epsilon.

    Attributes:
        spec: This rank's.

    Raises:
        ConfigError: The heads cannot be divided among the ranks.
    """

    def __init__(
        self,
        ctx: BuildContext,
        spec: MlaAttentionSpec,
        rotary: Rotary,
        up: str,
        norm: str,
        norm_eps: float,
    ) -> None:
        assert rotary.rotary_dim == spec.rope_dim
        rows = spec.nope_dim + spec.v_dim
        heads = ctx.split("attention heads", Section(spec.num_heads, rows))
        self.spec = replace(spec, num_heads=heads.size // rows, interleaved=rotary.interleaved)
        self._op: MlaAttentionOp = ctx.selector.choose("mla_attention", self.spec)
        self._norm = RMSNorm(ctx, norm, spec.latent_dim, norm_eps)
        parts = [(up, spec.num_heads * rows)]
        # Each head's part is multiplied alone, so it is kept in the model's type, and what only
        # loading would quantize is not quantized.
        self._matrix = Matrix(
            ctx, parts, spec.latent_dim, quantize=not ctx.format.online, outputs=heads
        )
        self._matrix.deliver(
            ctx, self._load, ctx.holder("mla_attention", self.spec, ctx.dtype, self._op)
        )
        ctx.weight_bytes.append(self._op.nbytes)
        self._cos_sin = rotary.table
        self._device = ctx.device
        self.cache: Tensor
        shape = (spec.block_size, spec.row_dim)
        part = CachePart("latent", "td", shape, spec.kv_dtype)
        self.cache_spec = CacheSpec("latent", spec.block_size, (part,))
        self.planner: tuple[Hashable, Prepare] = (self.spec, self._op.prepare)
        self.view = 0
        ctx.cache_layers.append(self)

    def _load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        spec = self.spec
        up = plain_weight(replace(self._matrix.spec, activation=None), tensors)
        self._op.load(up.view(spec.num_heads, spec.nope_dim + spec.v_dim, spec.latent_dim))

    def allocate_cache(self, num_blocks: int) -> None:
        """Take memory for the cache: [num_blocks, block_size, row_dim], left as it comes."""
        shape, dtype = (num_blocks, *self.cache_spec.parts[0].shape), self.spec.kv_dtype
        self.cache = torch.empty(shape, dtype=torch_dtype(dtype), device=self._device)
        self.cache[-1] = 0  # the null block: what nobody reads must not spoil sums by NaN

    def share_cache(self, other: LatentAttention) -> None:
        """Use another layer's cache, whose blocks have equal parts."""
        self.cache = other.cache

    def free_cache(self) -> None:
        """Give the cache's memory back, though an operation may remember the tensor."""
        give_back(self.cache)
        del self.cache

    def __call__(self, q: Tensor, rows: Tensor, batch: ForwardBatch) -> Tensor:
        """Write the step's rows and attend.

        Args:
            q: [num_tokens, num_heads * (nope_dim + rope_dim)], this rank's heads; overwritten.
            rows: [num_tokens, latent_dim + rope_dim], neither normed nor rotated.
            batch: The step.

        Returns:
            [num_tokens, num_heads * v_dim].
        """
        spec = self.spec
        latent = self._norm(rows[:, : spec.latent_dim].contiguous())
        assert isinstance(latent, Tensor)
        turned = self._op.write(
            q.view(len(q), spec.num_heads, -1),
            latent,
            rows[:, spec.latent_dim :],
            batch.positions,
            self._cos_sin,
            self.cache,
            batch.views[self.view].slot_mapping,
        )
        if batch.between is not None:
            return batch.between(turned, self._read, spec.num_heads * spec.v_dim)
        return self._read(turned, batch.views)

    def _read(self, q: Tensor, views: Sequence[CacheView]) -> Tensor:
        return self._op(q, self.cache, views[self.view].prepared)
