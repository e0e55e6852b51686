"""Norms of q and k before rotation that slots of attention do not know: RMS norms over all heads,
layer norms of each head, and RMS norms whose weights are each head's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers import BuildContext, DividedRMSNorm, LayerNorm, RMSNorm, Section, Split
from hotshoe.layers.weights import Place
from hotshoe_models.spec import DecoderSpec


def before_heads(
    spec: DecoderSpec, ctx: BuildContext, prefix: str
) -> Callable[[Tensor], None] | None:
    """Build the norms of a layer's q and k; None where there are none, or attention has them."""
    kind = spec.names.layer_qk_norm
    if spec.names.qk_norm is None or not (spec.names.wide_qk_norm or kind):
        return None
    norms: list[DividedRMSNorm | SharedNorm | OwnNorms] = []
    for name, heads in zip(spec.names.qk_norm, (spec.num_heads, spec.num_kv_heads), strict=True):
        section = Section(heads, spec.head_dim, shared=heads == spec.num_kv_heads)
        split, whole = ctx.split("attention heads", section), heads * spec.head_dim
        if kind is None:
            norms.append(DividedRMSNorm(ctx, prefix + name, whole, split, spec.norm_eps))
        elif kind == "shared":
            norms.append(SharedNorm(spec, ctx, prefix + name, split))
        else:
            norms.append(OwnNorms(spec, ctx, prefix + name, heads, split, rms=kind == "own_rms"))

    def apply(qkv: Tensor) -> None:
        """Overwrite q and k in qkv [num_tokens, all channels]."""
        begin = 0
        for norm in norms:
            part = qkv[:, begin : (begin := begin + norm.size)]
            part.copy_(norm(part))

    return apply


class SharedNorm:
    """One layer norm, with a bias, of every head."""

    def __init__(self, spec: DecoderSpec, ctx: BuildContext, name: str, split: Split) -> None:
        self.size, self._dim = split.size, spec.head_dim
        self._norm = LayerNorm(ctx, name, spec.head_dim, spec.norm_eps)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize each head of [num_tokens, size] into a new tensor."""
        return self._norm(x.reshape(-1, self._dim)).view(x.shape)


class OwnNorms:
    """A layer norm of each head with weights of its own, without biases; or an RMS norm.

    Args:
        name: Of the tensor with all weights [heads, head_dim]; with {} of each head's tensor.
        flat: It is [heads * head_dim].
        rms: The norm is of the root of mean squares.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        ctx: BuildContext,
        name: str,
        heads: int,
        split: Split,
        flat: bool = False,
        rms: bool = False,
    ) -> None:
        self.size, self._dim = split.size, spec.head_dim
        plain = LayerNorm(ctx, name, spec.head_dim, spec.norm_eps, weighted=False)
        self._norm = RMSNorm(ctx, None, spec.head_dim, spec.norm_eps) if rms else plain
        self.weight = torch.ones(self.size, device=ctx.device, dtype=ctx.torch_dtype)
        first = split.ranges[0][0] // self._dim
        own = range(first, first + self.size // self._dim)
        holder = ctx.holder("layer_norm", plain.spec, ctx.dtype, self)
        if "{}" in name:
            for at, head in enumerate(own):
                place = Place(holder, "weight", (at * self._dim, (at + 1) * self._dim), ())
                sink = partial(self._take, place.rows, slice(None))
                ctx.weights.expect(f"{name.format(head)}.weight", (self._dim,), sink, place=place)
            others = [name.format(head) for head in range(heads) if head not in own]
            ctx.weights.elsewhere([rf"^{re.escape(other)}\." for other in others])
        else:
            place = Place(holder, "weight", (0, self.size), ())
            sink = partial(self._take, place.rows, slice(own.start, own.stop))
            shape = (heads * self._dim,) if flat else (heads, self._dim)
            ctx.weights.expect(f"{name}.weight", shape, sink, place=place)

    def _take(self, rows: tuple[int, int], heads: slice, tensor: Tensor) -> None:
        self.weight[slice(*rows)] = tensor.view(-1, self._dim)[heads].flatten().to(self.weight)

    def state(self) -> dict[str, Tensor]:
        """Return this rank's weights."""
        return {"weight": self.weight}

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize each head of [num_tokens, size] into a new tensor."""
        normed = self._norm(x.reshape(-1, self._dim))
        assert isinstance(normed, Tensor)
        return normed.view(x.shape) * self.weight
