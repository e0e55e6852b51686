"""Several residual streams and what mixes them: specification and call signature. Free of torch.

Source: Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections", arXiv:2512.24880.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class HyperConnectionSpec:
    """What lies between two blocks of a model with `count` residual streams.

    The streams of a token, normed together (RMS, no weight), times a matrix give logits. Each
    group of logits is scaled, and a bias is added.

    - `count` logits say what the next block takes: the sum of the streams, each by the sigmoid of
      its logit, plus `eps`.
    - `count` logits say how the block's output joins: stream i by `magnitude` times the sigmoid of
      logit i.
    - `count * count` logits say how streams mix behind the block. A softmax over each row, plus
      `eps`; then columns are divided by their sums plus `eps`. Rows and columns follow in turn, so
      that columns are divided `iterations` times in all.

    Where streams do not mix there are no logits of the third kind: each stream stays as it is, and
    `eps` is added to the factor by which a block's output joins it.

    Attributes:
        count: Streams.
        hidden_size: Channels of each.
        iterations: At least 1.
        eps: Added to factors and sums.
        norm_eps: Of the norm.
        dtype: Of the streams.
        ends: Whether no block follows: there are only the logits of the first kind.
        mixes: Whether streams mix behind a block; also of the one in front.
        magnitude: Factor on the sigmoids by which a block's output joins.
    """

    count: int
    hidden_size: int
    iterations: int
    eps: float
    norm_eps: float
    dtype: str
    ends: bool = False
    mixes: bool = True
    magnitude: float = 2.0

    @property
    def gates(self) -> int:
        """Numbers of a token that say how the next block's output joins."""
        return 0 if self.ends else self.joining

    @property
    def joining(self) -> int:
        """Numbers of a token that say how a block's output joins."""
        return self.count * (1 + self.count * self.mixes)

    @property
    def outputs(self) -> int:
        """Logits of a token."""
        return self.count + self.gates

    @property
    def scales(self) -> int:
        """Groups of logits."""
        return 1 if self.ends else 2 + self.mixes


class HyperConnectionOp(Protocol):
    """Joins what a block put out with the streams, and says what the next one takes."""

    def __call__(
        self,
        streams: Tensor,
        block: tuple[Tensor, Tensor] | None,
        fn: Tensor,
        base: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute with float32 inside.

        Args:
            streams: [n, count, hidden_size], before the block; channels are dense. The first ones
                of a model may be one tensor, expanded.
            block: What the block put out [n, hidden_size], and the gates [n, spec.joining] that
                were returned in front of it; None where no block precedes.
            fn: [outputs, count * hidden_size] float32.
            base: [outputs] float32.
            scale: [scales] float32, one for each group of logits.

        Returns:
            The streams [n, count, hidden_size], those of the arguments without a block; what the
            next block takes [n, hidden_size]; gates [n, spec.gates] float32: a factor of each
            stream, then, where streams mix, the matrix whose entry (i, j) is the share of stream i
            in the next stream j.
        """
        ...
