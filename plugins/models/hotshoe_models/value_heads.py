"""Values of attention that are made of keys, or normed."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, RMSNorm, Section
from hotshoe_models.spec import DecoderSpec


class Values:
    """Makes values of keys where they have no matrix, and norms them where they have a norm."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int) -> None:
        section = Section(spec.num_kv_heads, spec.head_dim, shared=True)
        self._width, self._head_dim = ctx.split("attention heads", section).size, spec.head_dim
        self._copied = spec.layers[i].keys_as_values
        self._norm = RMSNorm(ctx, None, spec.head_dim, spec.norm_eps) if spec.value_norm else None

    def __call__(self, qkv: Tensor) -> Tensor:
        """Return [num_tokens, all channels] of q, k and v."""
        values = qkv[:, -self._width :]
        if self._norm is not None:
            normed = self._norm(values.reshape(-1, self._head_dim))
            assert isinstance(normed, Tensor)
            values = normed.view(-1, self._width)
        if self._copied:
            return torch.cat((qkv, values), dim=1)
        if self._norm is not None:
            qkv[:, -self._width :] = values
        return qkv
