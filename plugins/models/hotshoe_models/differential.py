"""The mixer of differential attention: the difference of two softmaxes, over values of two heads.

Heads go in two halves. Head h of the first and head h of the second attend each, by a softmax of
its own, to the values of two key heads, side by side. What the second puts out, times a learned
factor, is taken from what the first does. So all heads attend to either half of the values. The
halves have a cache each, with all keys beside the values of half of the heads, twice.
Source: Ye et al. 2024, arXiv:2410.05258.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import (
    Attention,
    BuildContext,
    ForwardBatch,
    Linear,
    Matrix,
    Place,
    RMSNorm,
    Rotary,
    Rotation,
    Section,
)
from hotshoe.slots import Quantized, renewed
from hotshoe_models.mlps import parts_of
from hotshoe_models.projections import attention_spec
from hotshoe_models.spec import DecoderSpec

#: What ranks divide, in messages.
WHAT = "pairs of heads"
PARTS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")


class DifferentialMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks divide the pairs of heads."""

    def __init__(
        self, spec: DecoderSpec, ctx: BuildContext, i: int, rotaries: Mapping[Rotation, Rotary]
    ) -> None:
        rotation, names, dim = spec.layers[i].rotation, spec.names, spec.head_dim
        assert rotation is not None
        prefix = names.layer.format(i)
        pairs, key_pairs = spec.num_heads // 2, spec.num_kv_heads // 2
        halves = [Section(pairs, dim)] * 2 + [Section(key_pairs, dim, shared=True)] * 4
        rows = [spec.num_heads * dim, *[spec.num_kv_heads * dim] * 2]
        self._qkv = Linear(
            ctx,
            Matrix(
                ctx,
                parts_of(prefix, names.qkv, rows),
                spec.hidden_size,
                bias=spec.qkv_bias,
                quantize=spec.quantizes("qkv", ctx.format),
                outputs=ctx.split(WHAT, *halves),
            ),
        )
        own, keys = (ctx.split(WHAT, section).size for section in halves[1:3])
        asked = replace(
            attention_spec(spec, ctx, i), num_heads=2 * own // dim, num_kv_heads=2 * keys // dim
        )
        self._halves = [Attention(ctx, asked, rotaries[rotation]) for _ in range(2)]
        self._norm_size, self._widths = 2 * dim, [2 * own + 2 * keys, keys, keys]
        self._norm = RMSNorm(ctx, None, self._norm_size, spec.norm_eps)
        self._o = Linear(
            ctx,
            Matrix(
                ctx,
                [(prefix + names.o, spec.hidden_size)],
                spec.num_heads * dim,
                bias=spec.o_bias,
                quantize=spec.quantizes("o", ctx.format),
                inputs=ctx.split(WHAT, Section(pairs, self._norm_size)),
            ),
        )
        self.input_quant = self._qkv.input_quant
        self._first = 0.8 - 0.6 * math.exp(-0.3 * i)
        self._held = {part: torch.zeros(spec.head_dim, device=ctx.device) for part in PARTS}
        self._factor = torch.full((), self._first, device=ctx.device)
        holder = ctx.holder("attention", self._halves[0].spec, "float32", self)
        for part in PARTS:
            sink = partial(self._take, part)
            place = Place(holder, part, (0, spec.head_dim), ())
            name = f"{prefix}self_attn.{part}"
            ctx.weights.expect(name, (spec.head_dim,), sink, place=place)

    def _take(self, part: str, tensor: Tensor) -> None:
        self._held[part] = renewed(self._held[part], tensor.to(self._held[part], copy=True))
        q1, k1, q2, k2 = (self._held[name] for name in PARTS)
        factor = (q1 * k1).sum().exp() - (q2 * k2).sum().exp() + self._first
        self._factor = renewed(self._factor, factor)

    def state(self) -> dict[str, Tensor]:
        """Return what the factor is made of, [head_dim] each."""
        return self._held

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        own, *values = torch.split(self._qkv(hidden), self._widths, 1)
        heads = self._halves[0].spec.num_heads
        outs = own.new_empty((len(own), heads, 2, self._norm_size // 2))
        for i, (attend, half) in enumerate(zip(self._halves, values, strict=True)):
            # Written at once: the next call may leave its result where this one's is.
            found = attend(torch.cat((own, half, half), 1), batch)
            outs[:, :, i] = found.view(len(own), heads, -1)
        first, second = outs.flatten(2).chunk(2, 1)
        taken = first - self._factor.to(first.dtype) * second
        normed = self._norm(taken.reshape(-1, self._norm_size))
        assert isinstance(normed, Tensor)
        out = normed.mul_(1.0 - self._first).view(len(own), -1)
        return self._o(out if keep is None else out[keep])
