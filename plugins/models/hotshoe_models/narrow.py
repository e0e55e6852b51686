"""Attention whose q is made of narrow latents, over one key and one value for all heads.

Source: multi-matrix factorization attention, Hu et al. 2024, arXiv:2412.19255.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.slots import Quantized
from hotshoe_models.mlps import parts_of
from hotshoe_models.projections import build_attention, o_matrix
from hotshoe_models.spec import DecoderSpec


class NarrowMixer:
    """See `hotshoe_models.mixers.Mixer`. Every rank has all of the latents, the key and the value,
    and its own heads' rows of the matrix that makes q."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        assert spec.q_dim is not None, "the size of the latents"
        assert spec.num_kv_heads == 1, "all heads share a key"
        names, prefix, dim = spec.names, spec.names.layer.format(i), spec.head_dim
        quantize = spec.quantizes("qkv", ctx.format)
        rows = parts_of(prefix, names.qkv, [spec.q_dim, dim, dim])
        self._first = Linear(ctx, Matrix(ctx, rows, spec.hidden_size, quantize=quantize))
        self._norm = RMSNorm(ctx, f"{prefix}self_attn.inter_norm", spec.q_dim, spec.norm_eps)
        heads = ctx.split("attention heads", Section(spec.num_heads, dim))
        wide = [(f"{prefix}self_attn.wq", spec.num_heads * dim)]
        self._q = Linear(ctx, Matrix(ctx, wide, spec.q_dim, quantize=quantize, outputs=heads))
        self._attention = build_attention(spec, ctx, i, rotaries)
        self._o = Linear(ctx, o_matrix(spec, ctx, i))
        self._width, self.input_quant = spec.q_dim, self._first.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        made = self._first(hidden)
        q = self._q(self._norm(made[:, : self._width].contiguous()))
        out = self._attention(torch.cat((q, made[:, self._width :]), 1), batch)
        return self._o(out if keep is None else out[keep])
