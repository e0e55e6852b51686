"""Lightning attention: linear attention in which each head forgets at a rate of its own, and layers
whose residual is normed.

A state-space block computes it. x, B and C are values, keys and queries, steps of time are 1, and
its convolution sees the token itself alone, so that the activation behind it is all that it does.
Source: MiniMax 2025, arXiv:2501.08313; Dao and Gu 2024, arXiv:2405.21060.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import (
    BuildContext,
    DividedRMSNorm,
    ForwardBatch,
    Linear,
    Matrix,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.layers.split import Split
from hotshoe.layers.states import StateLayer
from hotshoe.slots import Quantized, StateSpaceSpec, StateSpaceWeights
from hotshoe_models.decoder import DenseDecoder
from hotshoe_models.mixers import MIXERS, Mixer
from hotshoe_models.mlps import build_mlp
from hotshoe_models.norms import plain_norm
from hotshoe_models.spec import DecoderSpec

HEADS = "heads of linear attention"
SLOT = "state_space"
#: SiLU of it is 1, so that a gate of it leaves what it scales.
OPEN = 1.2784645427610738
#: Tokens that the convolution sees: the least that there may be.
WIDTH = 2
NORM_EPS = 1e-6


def rates(heads: int, layer: int, layers: int) -> list[float]:
    """Return how fast each head forgets, the logarithm of a decay per token without its sign.

    Heads have those of ALiBi, and layers behind have less of them.
    """
    factor = 1.0 - layer / (layers - 1 + 1e-5) + 1e-5
    return [2.0 ** (-8.0 * (head + 1) / heads) * factor for head in range(heads)]


class LightningMixer:
    """See `hotshoe_models.mixers.Mixer`. The state of a head is [head_dim, head_dim]."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        prefix = f"{spec.names.layer.format(i)}self_attn."
        heads, dim, size = spec.num_heads, spec.head_dim, spec.hidden_size
        whole, quantize = heads * dim, spec.quantizes("state", ctx.format)
        channels, numbers = (ctx.split(HEADS, Section(heads, width)) for width in (dim, 1))
        [(first, last)] = numbers.ranges
        matrix = partial(Matrix, ctx, quantize=quantize)
        inputs = [(f"{prefix}qkv_proj", 3 * whole)]
        self._qkv = Linear(ctx, matrix(inputs, size, outputs=_rows(first, last, dim)))
        gates = [(f"{prefix}output_gate", whole)]
        self._gate = Linear(ctx, matrix(gates, size, outputs=channels))
        self._out = Linear(ctx, matrix([(f"{prefix}out_proj", size)], whole, inputs=channels))
        self._norm = DividedRMSNorm(ctx, f"{prefix}norm", whole, channels, NORM_EPS)
        self._states = _States(ctx, rates(heads, i, len(spec.layers))[first:last], dim)
        # Ready before a step may be recorded.
        place = {"device": ctx.device, "dtype": ctx.torch_dtype}
        self._z = torch.full((1, channels.size), OPEN, **place)
        self._dt = torch.zeros(1, last - first, **place)
        self.input_quant = None

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `Mixer`."""
        made = self._qkv(hidden)
        rows = (self._z.expand(len(made), -1), made, self._dt.expand(len(made), -1))
        out = self._states(torch.cat(rows, 1), batch)
        if keep is not None:
            assert isinstance(hidden, Tensor)
            out, hidden = out[keep], hidden[keep]
        return self._out(self._norm(out).mul_(torch.sigmoid(self._gate(hidden))))


def _rows(first: int, last: int, dim: int) -> Split:
    """Return where the values, keys and queries of heads are, of which a file has, head by head,
    queries, keys and values."""
    starts = [(3 * head + part) * dim for part in (2, 1, 0) for head in range(first, last)]
    return Split(tuple((begin, begin + dim) for begin in starts))


class _States(StateLayer[StateSpaceSpec]):
    """States of heads that forget at rates which no checkpoint has."""

    def __init__(self, ctx: BuildContext, forgets: Sequence[float], dim: int) -> None:
        heads = len(forgets)
        types = ctx.dtype, ctx.conv_state_dtype or ctx.dtype, ctx.state_dtype
        sizes = heads, dim, dim, heads, WIDTH
        spec = StateSpaceSpec(*sizes, *types, ctx.block_size, ctx.checkpoints, (1.0, 1.0))
        super().__init__(ctx, SLOT, spec, (heads, dim, dim), StateSpaceWeights)
        conv = torch.zeros(spec.conv_size, WIDTH, device=ctx.device, dtype=ctx.torch_dtype)
        conv[:, -1] = 1
        decays = -torch.tensor(forgets, dtype=torch.float32, device=ctx.device)
        nothing = torch.zeros_like(decays)
        self._weights = StateSpaceWeights(conv, None, decays, nothing, nothing, None)


class BlendDecoder(DenseDecoder):
    """See `DenseDecoder`. A block's result joins what the norm in front of it has put out.

    Args:
        blends: By mixer, and for "mlp": factors on that, and on the result.
    """

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, blends: Mapping[str, tuple[float, float]]
    ) -> None:
        self._blends = blends
        super().__init__(spec, ctx)

    def _build_layers(
        self, spec: DecoderSpec, ctx: BuildContext, own: range, rotaries: dict[Rotation, Rotary]
    ) -> None:
        """Build this stage's layers, which have their norms themselves."""
        self._first_norm = None
        mixers = {**MIXERS, "lightning": LightningMixer}
        self.layers = []
        for i in own:
            kind = spec.layers[i].mixer
            blends = self._blends[kind], self._blends["mlp"]
            mixer = mixers[kind](spec, ctx, i, rotaries)
            self.layers.append(BlendLayer(spec, ctx, i, mixer, blends))


class BlendLayer:
    """Norm, mixer, norm and MLP, each of the two joined to what the norm has put out."""

    input_quant = None

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        mixer: Mixer,
        blends: tuple[tuple[float, float], tuple[float, float]],
    ) -> None:
        prefix, names = spec.names.layer.format(i), spec.names
        self._mixer, self._mlp = mixer, build_mlp(spec, ctx, i)
        self._input_norm = plain_norm(spec, ctx, f"{prefix}{names.input_norm}")
        self._mlp_norm = plain_norm(spec, ctx, f"{prefix}{names.mlp_norm}")
        self._around_mixer, self._around_mlp = blends
        last = i + 1 == len(spec.layers)
        self._final = plain_norm(spec, ctx, names.final_norm) if last else None

    def __call__(
        self, hidden: Tensor | Quantized, residual: Tensor, batch: ForwardBatch, keep: Tensor | None
    ) -> tuple[Tensor | Quantized, Tensor]:
        """See `hotshoe_models.decoder.Layer`; `hidden` is not read."""
        normed = self._input_norm(residual)
        out = self._mixer(normed, batch, keep)
        normed = normed if keep is None else normed[keep]
        normed = self._mlp_norm(_blend(normed, out, self._around_mixer))
        residual = _blend(normed, self._mlp(normed), self._around_mlp)
        return (residual if self._final is None else self._final(residual)), residual


def _blend(normed: Tensor, out: Tensor, factors: tuple[float, float]) -> Tensor:
    return (normed * factors[0]).add_(out, alpha=factors[1])
