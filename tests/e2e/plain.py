"""Plain float64 code of attention and norms, for tiny models that tests write themselves."""

import torch
from torch import Tensor

THETA, EPS = 10000.0, 1e-6


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from each token to those up to it: [n, heads * dim] for [heads, n, dim] each.

    Heads of k and v serve neighbors among those of q.
    """
    heads, count, dim = q.shape
    powers = THETA ** -(torch.arange(0, dim, 2).double() / dim)
    angles = torch.arange(count).double()[:, None] * powers
    cos, sin = angles.cos(), angles.sin()

    def rotated(y: Tensor) -> Tensor:
        left, right = y.chunk(2, -1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)

    k, v = (y.repeat_interleave(heads // len(k), 0) for y in (rotated(k), v))
    scores = rotated(q) @ k.transpose(1, 2) * dim**-0.5
    later = torch.ones(count, count).triu(1).bool()
    found = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
    return found.transpose(0, 1).reshape(count, -1)
