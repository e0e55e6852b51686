"""Values of attention that are made of keys, normed or scaled."""

from __future__ import annotations

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, RMSNorm, Section
from hotshoe_models.spec import DecoderSpec


class Values:
    """Makes values of keys where they have no matrix; norms and scales them as the model says."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int) -> None:
        section = Section(spec.num_kv_heads, spec.value_dim, shared=True)
        self._width, self._head_dim = ctx.split("attention heads", section).size, spec.value_dim
        self._scale = spec.value_scale
        self._copied = spec.layers[i].keys_as_values
        self._norm = RMSNorm(ctx, None, spec.value_dim, spec.norm_eps) if spec.value_norm else None

    def __call__(self, qkv: Tensor) -> Tensor:
        """Return [num_tokens, all channels] of q, k and v."""
        values = qkv[:, -self._width :]
        if self._scale != 1.0:
            values.mul_(self._scale)
        if self._norm is not None:
            normed = self._norm(values.reshape(-1, self._head_dim))
            assert isinstance(normed, Tensor)
            values = normed.view(-1, self._width)
        if self._copied:
            return torch.cat((qkv, values), dim=1)
        if self._norm is not None:
            qkv[:, -self._width :] = values
        return qkv
