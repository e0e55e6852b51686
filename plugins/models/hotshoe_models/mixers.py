"""Mixers: the part of a layer that looks at other tokens, by the name that a `LayerSpec` gives it.

A mixer is all between the norm before it and the residual addition behind. It knows no family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import (
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    Rotary,
    Rotation,
    StateSpace,
)
from hotshoe.slots import Quantized, QuantSpec
from hotshoe_models.blocks import BlockMixer
from hotshoe_models.compressed import CompressedMixer
from hotshoe_models.convolutions import ConvMixer
from hotshoe_models.delta import DeltaMixer
from hotshoe_models.differential import DifferentialMixer
from hotshoe_models.head_norms import before_heads
from hotshoe_models.latent import LatentMixer
from hotshoe_models.memory import MemoryMixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.narrow import NarrowMixer
from hotshoe_models.projections import (
    build_attention,
    changes_values,
    o_matrix,
    qkv_matrix,
)
from hotshoe_models.recurrent import RecurrentMixer
from hotshoe_models.selective import SelectiveMixer
from hotshoe_models.spec import DecoderSpec
from hotshoe_models.value_heads import Values

Rotaries: TypeAlias = Mapping[Rotation, Rotary]


class Mixer(Protocol):
    """One layer's mixer.

    Attributes:
        input_quant: How the norm before it may quantize what it hands over; None for not at all.
    """

    input_quant: QuantSpec | None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """Map normed [num_tokens, hidden_size] to the output of the tokens at `keep` (None: all),
        [s, hidden_size]. The cache is written for every token."""


class AttentionMixer:
    """Attention of q, k and v projections over the cache of keys and values."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        prefix = spec.names.layer.format(i)
        matrix, self._gates = qkv_matrix(spec, ctx, i)
        self._qkv = Linear(ctx, matrix)
        self._norms = before_heads(spec, ctx, prefix)
        self._values = Values(spec, ctx, i) if changes_values(spec, i) else None
        self.attention = build_attention(spec, ctx, i, rotaries)
        self._temperature, self._limit = spec.layers[i].temperature, spec.qkv_limit
        self._q_width = self.attention.spec.num_heads * spec.head_dim
        self._softplus = spec.gate_activation == "softplus"
        self._o = Linear(ctx, o_matrix(spec, ctx, i))
        self.input_quant = self._qkv.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        qkv, gates = self._qkv(hidden), None
        if self._gates:
            gates, qkv = qkv[:, : self._gates], qkv[:, self._gates :].contiguous()
        if self._norms is not None:
            self._norms(qkv)
        if self._limit is not None:
            qkv.clamp_(-self._limit, self._limit)
        if self._temperature is not None:
            qkv[:, : self._q_width].mul_(self._temperature.of(batch.positions))
        if self._values is not None:
            qkv = self._values(qkv)
        out = self.attention(qkv, batch)
        out = out if gates is None else self._gated(out, gates)
        return self._o(out if keep is None else out[keep])

    def _gated(self, out: Tensor, gates: Tensor) -> Tensor:
        """Scale [num_tokens, channels] by gates of channels or of heads, [num_tokens, gates]."""
        wide = functional.softplus(gates.float()) if self._softplus else torch.sigmoid(gates)
        return (out.view(*gates.shape, -1) * wide.to(out.dtype)[..., None]).view_as(out)


class StateMixer:
    """A Mamba-2 block over the states of sequences."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        block, size = spec.state, spec.hidden_size
        assert block is not None
        prefix = f"{spec.names.layer.format(i)}{block.name}."
        self._space = StateSpace(ctx, block.space, prefix, block.conv_bias)
        quantize = spec.quantizes("state", ctx.format)
        inner, width = block.space.inner_size, sum(block.space.sections)
        into, out = [(f"{prefix}in_proj", width)], [(f"{prefix}out_proj", size)]
        rows, columns = self._space.inputs, self._space.outputs
        self._in = Linear(
            ctx, Matrix(ctx, into, size, bias=block.in_bias, quantize=quantize, outputs=rows)
        )
        self._out = Linear(
            ctx, Matrix(ctx, out, inner, bias=block.out_bias, quantize=quantize, inputs=columns)
        )
        self._scales = None if block.scales is None else _scales(block.scales, self._space, ctx)
        self.input_quant = self._in.input_quant

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        projected = self._in(hidden)
        if self._scales is not None:
            projected = projected.mul_(self._scales)
        out = self._space(projected, batch)
        return self._out(out if keep is None else out[keep])


def _scales(factors: Sequence[float], space: StateSpace, ctx: BuildContext) -> Tensor:
    """Return the factor of each column of this rank's projection: of z, x, B, C and dt."""
    spec = space.spec
    group = spec.num_groups * spec.state_size
    widths = torch.tensor([spec.inner_size, spec.inner_size, group, group, spec.num_heads])
    return torch.tensor(factors).repeat_interleave(widths).to(ctx.device, ctx.torch_dtype)


class BothMixer:
    """Attention and a Mamba-2 block side by side, whose outputs are added."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        assert spec.state is not None
        self._factors = spec.state
        self._attention = AttentionMixer(spec, ctx, i, rotaries)
        self._state = StateMixer(spec, ctx, i, rotaries)
        same = self._attention.input_quant == self._state.input_quant
        plain = self._factors.attention_in == 1.0
        self.input_quant = self._state.input_quant if same and plain else None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        factors, taken = self._factors, hidden
        if factors.attention_in != 1.0:
            assert isinstance(hidden, Tensor)
            taken = hidden * factors.attention_in
        out = self._attention(taken, batch, keep) * factors.attention_out
        return out.add_(self._state(hidden, batch, keep), alpha=factors.state_out)


class MlpMixer:
    """An MLP in a mixer's place, of models whose layers have one block each."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Rotaries) -> None:
        self._mlp = build_mlp(spec, ctx, i)
        self.input_quant = None  # so that tokens can be chosen before the products

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        assert isinstance(hidden, Tensor)
        return self._mlp(hidden if keep is None else hidden[keep])


#: What `LayerSpec.mixer` may name.
MIXERS: Mapping[str, Callable[[DecoderSpec, BuildContext, int, Rotaries], Mixer]] = {
    "attention": AttentionMixer,
    "state": StateMixer,
    "selective": SelectiveMixer,
    "delta": DeltaMixer,
    "conv": ConvMixer,
    "recurrent": RecurrentMixer,
    "memory": MemoryMixer,
    "attention+state": BothMixer,
    **dict.fromkeys(("latent", "indexed", "shared"), LatentMixer),
    "compressed": CompressedMixer,
    "blocks": BlockMixer,
    "differential": DifferentialMixer,
    "narrow": NarrowMixer,
    "mlp": MlpMixer,
}
