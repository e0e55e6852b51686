"""The mixer of decoders that were made encoders: attention in both directions, without a cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from hotshoe.errors import CheckpointError
from hotshoe.layers import BuildContext, ForwardBatch, Linear, RMSNorm, Rotary, Rotation
from hotshoe.slots import PackedAttentionOp, PackedAttentionSpec, Quantized, StepShape
from hotshoe_models.projections import attention_spec, o_matrix, qk_norm_of, qkv_matrix
from hotshoe_models.spec import DecoderSpec


class PackedMixer:
    """See `hotshoe_models.mixers.Mixer`. A layer's window counts the tokens of one side.

    Attributes:
        spec, steps: What is asked for, and what serves it; see `share`.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        plain, rotation = attention_spec(spec, ctx, i), spec.layers[i].rotation
        if plain.softcap is not None or plain.alibi is not None or rotation is None:
            raise CheckpointError(
                "config.json: encoders of this form rotate, and have neither caps nor slopes"
            )
        rotary = rotaries[rotation]
        sizes = plain.num_heads, plain.num_kv_heads, plain.head_dim
        self.spec = PackedAttentionSpec(
            *sizes, ctx.dtype, plain.scale, rotary.rotary_dim, plain.window
        )
        self.steps = Steps(ctx.selector.choose("packed_attention", self.spec))
        self._table, self._sizes = rotary.table, sizes
        self._qkv = Linear(ctx, qkv_matrix(spec, ctx, i)[0])
        self._o = Linear(ctx, o_matrix(spec, ctx, i))
        self.input_quant = self._qkv.input_quant
        norm, dim = qk_norm_of(spec, i), plain.head_dim
        names = None if norm is None else norm.names
        self._norms = [RMSNorm(ctx, n, dim, spec.norm_eps, spec.norm_offset) for n in names or ()]

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        qkv, begin = self._qkv(hidden), 0
        for norm, heads in zip(self._norms, self._sizes, strict=False):
            end = begin + heads * self._sizes[2]
            normed = norm(qkv[:, begin:end].reshape(-1, self._sizes[2]))
            assert isinstance(normed, Tensor)
            qkv[:, begin:end] = normed.view(len(qkv), -1)
            begin = end
        out = self.steps(qkv, batch, self._table)
        return self._o(out if keep is None else out[keep])


class Steps:
    """An operation, and its plan of the step at hand."""

    def __init__(self, op: PackedAttentionOp) -> None:
        self._op = op
        self._shape: StepShape | None = None
        self._plan: Any = None

    def __call__(self, qkv: Tensor, batch: ForwardBatch, table: Tensor) -> Tensor:
        if batch.shape is not self._shape:
            self._shape, self._plan = batch.shape, self._op.prepare(batch.shape)
        return self._op(qkv, batch.positions, table, self._plan)


def share(mixers: Iterable[object]) -> None:
    """Let layers that ask the same share an operation, and so the plan of a step."""
    known: dict[PackedAttentionSpec, Steps] = {}
    for mixer in mixers:
        if isinstance(mixer, PackedMixer):
            mixer.steps = known.setdefault(mixer.spec, mixer.steps)
