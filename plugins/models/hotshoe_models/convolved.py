"""Attention whose q and k are convolved before they meet (compressed convolutional attention).

Two causal convolutions follow the projections of q and k: one of each channel, one of each head's
channels. What they put out joins the projections themselves, of which a head of q takes half from
its head of k. Each head is then brought to one length. Half of the heads of values are those of the
token before.

The slot of short convolutions computes all that looks at earlier tokens: with gates of 1 and a copy
of q and k for each tap of the second convolution, which is then a product of matrices.

Source: Figliolia et al. 2025, "Compressed Convolutional Attention", arXiv:2510.04476.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.layers import (
    Attention,
    BuildContext,
    ForwardBatch,
    Holder,
    Linear,
    Matrix,
    Place,
    Rotary,
    Rotation,
    Section,
    Split,
    stored_kv_scales,
)
from hotshoe.layers.states import SmallWeight, StateLayer
from hotshoe.slots import Quantized, ShortConvSpec, ShortConvWeights, renewed
from hotshoe_models.per_layer import Vector
from hotshoe_models.projections import attention_spec, o_matrix
from hotshoe_models.spec import DecoderSpec

PROJECTIONS = ("q_proj", "k_proj", "v_proj_current", "v_proj_delayed")


class ConvolvedMixer:
    """See `hotshoe_models.mixers.Mixer`. Ranks divide the heads that attend; each has all of what
    makes q, k and v, since a head of k takes part in each head of q and the other way round.

    Args:
        taps: Tokens that each of the two convolutions sees, the token itself included.
    """

    input_quant = None

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        i: int,
        rotaries: Mapping[Rotation, Rotary],
        taps: tuple[int, int],
    ) -> None:
        layer, prefix = spec.layers[i], spec.names.layer.format(i)
        name, dim = f"{prefix}self_attn.qkv_proj.", spec.head_dim
        self._shape = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, dim)
        self._size = (spec.num_heads + spec.num_kv_heads) * dim
        self._half = spec.num_kv_heads * dim // 2
        rows = (spec.num_heads * dim, spec.num_kv_heads * dim, self._half, self._half)
        parts = [(name + part, size) for part, size in zip(PROJECTIONS, rows, strict=True)]
        quantize = spec.quantizes("qkv", ctx.format)
        self._in = Linear(ctx, Matrix(ctx, parts, spec.hidden_size, quantize=quantize))
        self._lagged = Lagged(ctx, f"{name}conv_qk_depthwise", self._size, self._half, taps)
        self._heads = HeadProducts(ctx, f"{name}conv_qk_grouped", self._size, dim, taps[1])
        self._length = Vector(ctx, f"{prefix}self_attn.qk_norm.temp", spec.num_kv_heads)
        self._least = torch.finfo(ctx.torch_dtype).eps
        rotation = layer.rotation
        self._attention = Attention(
            ctx,
            attention_spec(spec, ctx, i),
            rotaries[rotation] if rotation is not None else None,
            kv_scales=stored_kv_scales(ctx.format, f"{prefix}self_attn"),
        )
        kv_heads = Section(spec.num_kv_heads, dim, shared=True)
        sections = (Section(spec.num_heads, dim), kv_heads, kv_heads)
        self._own = ctx.split("attention heads", *sections).ranges if ctx.size > 1 else ()
        self._o = Linear(ctx, o_matrix(spec, ctx, i))

    def __call__(
        self, hidden: Tensor | Quantized, batch: ForwardBatch, keep: Tensor | None
    ) -> Tensor:
        """See `hotshoe_models.mixers.Mixer`."""
        projected = self._in(hidden)
        plain, now, later = projected.split((self._size, self._half, self._half), 1)
        lagged, before = self._lagged.lag(plain, later, batch)
        q, k = self._joined(plain, self._heads(lagged))
        q, k = self._normed(q), self._normed(k) * self._length.value[:, None]
        made = (q.flatten(1).to(now.dtype), k.flatten(1).to(now.dtype), now, before)
        qkv = torch.cat(made, 1)
        if self._own:
            qkv = torch.cat([qkv[:, begin:end] for begin, end in self._own], 1)
        out = self._attention(qkv, batch)
        return self._o(out if keep is None else out[keep])

    def _joined(self, plain: Tensor, convolved: Tensor) -> tuple[Tensor, Tensor]:
        """Add to the convolved heads the mean of a head of q and its head of k, and for k the mean
        of those; return q [num_tokens, num_heads, dim] and k [num_tokens, num_kv_heads, dim]."""
        kv_heads, group, dim = self._shape
        cut = kv_heads * group * dim
        means = plain[:, :cut].view(-1, kv_heads, group, dim)
        means = (means + plain[:, cut:].view(-1, kv_heads, 1, dim)) * 0.5
        q = convolved[:, :cut].view_as(means) + means
        return q.flatten(1, 2), convolved[:, cut:].view(-1, kv_heads, dim) + means.mean(2)

    def _normed(self, heads: Tensor) -> Tensor:
        """Bring heads [num_tokens, heads, dim] to a length of sqrt(dim); float32."""
        exact = heads.float()
        length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).clamp_(min=self._least)
        return exact * (exact.shape[-1] ** 0.5 / length)


class Lagged(StateLayer[ShortConvSpec]):
    """A convolution of each channel, as it was 0, 1, ... tokens before, and channels of the token
    before; one call of slot `short_conv`, whole on each rank.

    Args:
        ctx: The build context; the layer registers itself there for a cache.
        name: Checkpoint prefix of the convolution.
        size: Channels that are convolved.
        late: Those that are taken from the token before.
        taps: Tokens that the convolution sees, and how many of its results are asked for.
    """

    def __init__(
        self, ctx: BuildContext, name: str, size: int, late: int, taps: tuple[int, int]
    ) -> None:
        self._copies, self._late = taps[1], late
        width, inner = max(sum(taps) - 1, 2), size * taps[1] + late
        held = ctx.conv_state_dtype or ctx.dtype
        spec = ShortConvSpec(inner, width, ctx.dtype, held, ctx.block_size, ctx.checkpoints)
        super().__init__(ctx, "short_conv", spec, None, ShortConvWeights)
        self._gates = torch.ones(1, 2 * inner, device=ctx.device, dtype=ctx.torch_dtype)
        whole = Split(((0, size),))
        weight = ((f"{name}.weight", (size, 1, taps[0]), whole),)
        bias = ((f"{name}.bias", (size,), whole),)
        weights = {
            "conv": SmallWeight(weight, read=self._taps),
            "conv_bias": SmallWeight(bias, read=self._biases),
        }
        self.expect(ctx, "short_conv", weights)

    def _taps(self, weight: Tensor) -> Tensor:
        """Return [inner, width] of [size, taps]: each copy sees tokens one earlier than the one
        before it, and the channels behind see the token before."""
        own, width = weight.view(-1, weight.shape[-1]), self.spec.conv_width
        spare = width - own.shape[1]
        rows = [functional.pad(own, (spare - i, i)) for i in range(self._copies)]
        before = weight.new_zeros(self._late, width)
        before[:, -2] = 1.0
        return torch.cat((*rows, before))

    def _biases(self, bias: Tensor) -> Tensor:
        return torch.cat((bias.repeat(self._copies), bias.new_zeros(self._late)))

    def lag(self, x: Tensor, late: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Return [num_tokens, copies, size] of x [num_tokens, size], and `late` [num_tokens, late]
        as it was one token before; 0 where a text begins."""
        gates = self._gates.expand(len(x), -1)
        out = self(torch.cat((gates, *[x] * self._copies, late), 1), batch)
        return out[:, : -self._late].view(len(x), self._copies, -1), out[:, -self._late :]


class HeadProducts:
    """A convolution of each head's channels, of what it sees side by side.

    Args:
        ctx: The build context.
        name: Checkpoint prefix.
        size: Channels of all heads.
        dim: Of one.
        taps: Tokens that it sees.
    """

    def __init__(self, ctx: BuildContext, name: str, size: int, dim: int, taps: int) -> None:
        self._shape = (size // dim, dim, taps * dim)
        self._place, self._held = (ctx.device, ctx.torch_dtype), dict[str, Tensor]()
        holder = Holder("linear", "layer", ctx.dtype, self.state)
        for part, shape in {"weight": (size, dim, taps), "bias": (size,)}.items():
            place = Place(holder, part, (0, size), ())
            sink = partial(self._take, part)
            ctx.weights.expect(f"{name}.{part}", shape, sink, place=place)
        ctx.weight_bytes.append(lambda: sum(held.nbytes for held in self._held.values()))

    def _take(self, part: str, tensor: Tensor) -> None:
        """Keep a tensor; the weight's columns by token, the latest first, then by channel."""
        rows = tensor.flip(-1).mT.flatten(1) if part == "weight" else tensor
        self._held[part] = renewed(self._held.get(part), rows.to(*self._place, copy=True))

    def state(self) -> dict[str, Tensor]:
        """Return weight [size, taps * dim] and bias [size]."""
        return self._held

    def __call__(self, x: Tensor) -> Tensor:
        """Map [num_tokens, taps, size], the latest token first, to [num_tokens, size]."""
        heads, dim, columns = self._shape
        seen = x.unflatten(2, (heads, dim)).permute(2, 0, 1, 3).reshape(heads, len(x), columns)
        bias, weight = (self._held[part].view(heads, dim, -1).mT for part in ("bias", "weight"))
        return torch.baddbmm(bias, seen, weight).transpose(0, 1).flatten(1)
