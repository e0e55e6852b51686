"""Reference of slot `hyper_connection`, float32 inside."""

import torch
from torch import Tensor
from torch.nn import functional

from hotshoe.platform import DeviceFacts
from hotshoe.slots.hyper import HyperConnectionSpec


class HyperConnection:
    """See `hotshoe.slots.HyperConnectionOp`."""

    def __init__(self, spec: HyperConnectionSpec, facts: DeviceFacts) -> None:
        self._spec = spec
        count = spec.count
        self._sizes = [count, count, count * count][: spec.scales]

    def __call__(
        self,
        streams: Tensor,
        block: tuple[Tensor, Tensor] | None,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        spec = self._spec
        if block is not None:
            streams = self.joined(streams, *block)
        flat = streams.flatten(1).float()
        inverse = torch.rsqrt(flat.square().mean(-1, keepdim=True) + spec.norm_eps)
        parts = torch.split(functional.linear(flat, fn) * inverse, self._sizes, -1)
        biases = torch.split(base, self._sizes)
        pre, *rest = (p * s + b for p, s, b in zip(parts, scale.unbind(), biases, strict=True))
        factors = torch.sigmoid(pre) + spec.eps
        taken = torch.einsum("nc,ncs->ns", factors, streams.float()).to(streams.dtype)
        if spec.ends:
            return streams, taken, flat.new_empty((len(flat), 0))
        post = spec.magnitude * torch.sigmoid(rest[0])
        if not spec.mixes:
            return streams, taken, post + spec.eps
        mix = rest[1]
        square = mix.view(len(mix), spec.count, spec.count)
        balanced = doubly_stochastic(square, spec.iterations, spec.eps)
        return streams, taken, torch.cat((post, balanced.flatten(1)), 1)

    def joined(self, streams: Tensor, out: Tensor, gates: Tensor) -> Tensor:
        """Return the streams behind a block."""
        count = self._spec.count
        if not self._spec.mixes:
            added = gates[..., None] * out[:, None].float()
            return (streams.float() + added).to(streams.dtype)
        post, mix = gates[:, :count], gates[:, count:].view(-1, count, count)
        mixed = torch.matmul(mix.mT.to(streams.dtype), streams)
        return torch.addcmul(mixed, post.to(out.dtype)[..., None], out[:, None])


def doubly_stochastic(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Bring the exponentials of matrices near to rows and columns that sum to 1.

    Source: Sinkhorn and Knopp 1967.

    Args:
        logits: [n, count, count] float32.
        iterations: How often columns are divided by their sums; rows are, between.
        eps: Added to entries at first, and to sums.
    """
    made = torch.softmax(logits, -1) + eps
    made = made / (made.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        made = made / (made.sum(-1, keepdim=True) + eps)
        made = made / (made.sum(-2, keepdim=True) + eps)
    return made
