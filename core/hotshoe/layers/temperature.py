"""Factors on q that grow with its position, so that long texts do not blur attention."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hotshoe.layers.context import BuildContext
from hotshoe.layers.split import Section
from hotshoe.layers.weights import Holder, Place


@dataclass(frozen=True, slots=True)
class Temperature:
    """A factor on a token's q: 1 + scale * log(1 + floor((position + shift) / length)).

    Source: Llama 4's; Nakanishi 2025, arXiv:2501.19399.
    """

    scale: float
    length: int
    shift: int

    def of(self, positions: Tensor) -> Tensor:
        """Return [num_tokens, 1] float32 for positions [num_tokens] int32."""
        steps = (positions + self.shift).div_(self.length, rounding_mode="floor").float()
        return steps.log1p_().mul_(self.scale).add_(1.0)[:, None]


@dataclass(frozen=True, slots=True)
class LogTemperature:
    """A factor on a token's scores: 1 + scale * log((position + 1) / length), and 1 up to `length`
    tokens. Source: Inkling, as transformers 5.24 has it."""

    scale: float
    length: int

    def of(self, positions: Tensor) -> Tensor:
        """Return [num_tokens, 1] float32 for positions [num_tokens] int32."""
        shares = (positions + 1).float().div_(self.length).clamp_(min=1.0)
        return shares.log_().mul_(self.scale).add_(1.0)[:, None]


class HeadTemperature:
    """Learned factors on a token's q, one for each head: scale * log(position + 1) + bias.

    Source: Nakanishi 2025, arXiv:2501.19399.

    Args:
        ctx: The build context.
        name: Checkpoint prefix of tensors `scale` and `bias`, each [num_heads].
        num_heads: The model's.
        divided: Ranks have a part of the heads each; else all have all of them.

    Raises:
        ConfigError: The heads cannot be divided among the ranks.
    """

    def __init__(self, ctx: BuildContext, name: str, num_heads: int, *, divided: bool) -> None:
        self._ranges: tuple[tuple[int, int], ...] = ((0, num_heads),)
        if divided:
            self._ranges = ctx.split("attention heads", Section(num_heads)).ranges
        own = sum(end - begin for begin, end in self._ranges)
        self._held = torch.zeros(2, own, device=ctx.device)
        holder = Holder("attention", "temperature", "float32", self.state)
        for row, part in enumerate(("scale", "bias")):
            place, sink = Place(holder, part, (0, own), ()), partial(self._take, row)
            ctx.weights.expect(f"{name}.{part}", (num_heads,), sink, place=place)

    def _take(self, row: int, tensor: Tensor) -> None:
        self._held[row].copy_(torch.cat([tensor[begin:end] for begin, end in self._ranges]))

    def state(self) -> dict[str, Tensor]:
        """Return this rank's scales and biases, each [num_heads] float32."""
        return {"scale": self._held[0], "bias": self._held[1]}

    def __call__(self, q: Tensor, positions: Tensor) -> Tensor:
        """Scale q [num_tokens, num_heads * head_dim] where it lies, and return it.

        Args:
            q: Of this rank's heads, contiguous.
            positions: [num_tokens] int32.
        """
        scale, bias = self._held
        factors = torch.addcmul(bias, positions.float().log1p_()[:, None], scale)
        q.view(len(q), len(scale), -1).mul_(factors[..., None])
        return q
