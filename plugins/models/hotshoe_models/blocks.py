"""The mixer of attention to chosen blocks of tokens, with its projections.

Names are those of MiniMax M3, the only family that has it; sizes are in a `BlockIndexerSpec`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from hotshoe.layers import (
    BlockAttention,
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
    stored_kv_scales,
)
from hotshoe.slots import Quantized
from hotshoe_models.projections import attention_spec, o_matrix, qk_norm_of, qkv_matrix
from hotshoe_models.spec import DecoderSpec


class BlockMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks divide the heads that choose as key heads."""

    #: The layer before hands over plain numbers: what chooses takes no others.
    input_quant = None

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        index, rotation = spec.blocks, spec.layers[i].rotation
        assert index is not None and rotation is not None
        prefix, size, dim = spec.names.layer.format(i), spec.hidden_size, index.head_dim
        # Only a checkpoint's own form: a choice is worth more than what its matrices take.
        stored = not ctx.format.online
        name = f"{prefix}self_attn.indexer."
        heads = ctx.split("attention heads", Section(index.num_heads, dim, shared=True))
        q_rows = [(f"{name}q_proj", index.num_heads * dim)]
        self._qkv = Linear(ctx, qkv_matrix(spec, ctx, i)[0])
        self._q = Linear(ctx, Matrix(ctx, q_rows, size, quantize=stored, outputs=heads))
        self._key = Linear(ctx, Matrix(ctx, [(f"{name}k_proj", dim)], size, quantize=stored))
        self._q_norm, self._k_norm = (
            RMSNorm(ctx, f"{name}{part}_norm", dim, spec.norm_eps, spec.norm_offset)
            for part in "qk"
        )
        self._attention = BlockAttention(
            ctx,
            attention_spec(spec, ctx, i),
            replace(index, num_heads=heads.size // dim),
            rotaries[rotation],
            qk_norm_of(spec, i),
            stored_kv_scales(ctx.format, (prefix + spec.names.o).rpartition(".")[0]),
        )
        self._dim = dim
        self._o = Linear(ctx, o_matrix(spec, ctx, i))

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        assert isinstance(hidden, Tensor)
        q, key = self._q(hidden), self._k_norm(self._key(hidden))
        normed = self._q_norm(q.view(-1, self._dim))
        assert isinstance(normed, Tensor) and isinstance(key, Tensor)
        out = self._attention(self._qkv(hidden), normed.view_as(q), key, batch)
        return self._o(out if keep is None else out[keep])
