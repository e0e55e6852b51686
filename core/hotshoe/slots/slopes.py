"""Slopes by which scores of attention fall with the distance of a key. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Alibi:
    """What a key's distance takes off each head's score: slope * (query position - key position).

    Source: Press et al. 2022, arXiv:2108.12409.

    Attributes:
        heads: Of all ranks.
        first: This rank's first.
        max_bias: The least slope is 2^-max_bias.
        factor: On every slope.
    """

    heads: int
    first: int = 0
    max_bias: float = 8.0
    factor: float = 1.0

    @property
    def series(self) -> tuple[int, float]:
        """Heads of the first series of slopes, and the step of exponents: slopes of head i are
        2^-(step * (i + 1)), behind that series 2^-(step * (i - heads + 1/2))."""
        heads = 1 << (self.heads.bit_length() - 1)
        return heads, self.max_bias / heads

    def slopes(self, count: int) -> tuple[float, ...]:
        """Return those of this rank's heads."""
        heads, step = self.series
        own = range(self.first, self.first + count)
        numbers = (i + 1 if i < heads else i - heads + 0.5 for i in own)
        return tuple(self.factor * 2.0 ** (-step * number) for number in numbers)
