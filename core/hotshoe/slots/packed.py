"""Slot `packed_attention`: attention in both directions among the tokens of each request of a step.

A slot of its own, as it has no cache: all tokens of a request are in the step. Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import StepShape


@dataclass(frozen=True, slots=True)
class PackedAttentionSpec:
    """Rotation of queries and keys, then attention of every token to those of its request.

    A logit is scale * (q·k), and with a bias that of its head and distance besides. The distance
    counts the tokens from the query to the key, below 0 for a key before it.
    Sources: Devlin et al. 2018, arXiv:1810.04805; Raffel et al. 2019, arXiv:1910.10683.

    Attributes:
        rotary_dim: Leading channels that are rotated, in pairs (i, i + rotary_dim/2); 0 for none.
        scale: Factor on q·k.
        window: A query at position p sees keys in [p - window, p + window]; None sees all.
        bias_span: Distances from -bias_span to bias_span have a bias each. Farther ones have that
            of the last. None for no bias.
        limited: Only the first tokens of a request may be seen; `prepare` is told how many.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    scale: float
    rotary_dim: int = 0
    window: int | None = None
    bias_span: int | None = None
    limited: bool = False

    @property
    def width(self) -> int:
        """Channels of a token's queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


class PackedAttentionOp(Protocol):
    """Attention over the rows of a step."""

    def prepare(self, shape: StepShape, num_keys: Tensor | None = None) -> Any:
        """Plan a step, once for all calls in it.

        Args:
            shape: Of a step whose requests have all their tokens in it: counts equal `seq_lens`.
            num_keys: [num_reqs] int32 where `spec.limited`, else None: so many leading tokens of a
                request are seen. All of them are queries; one that sees none gets zeros.

        Returns:
            What `__call__` takes as `prepared`.
        """
        ...

    def __call__(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        prepared: Any,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            qkv: [num_tokens, spec.width], model dtype, contiguous; overwritten.
            positions: [num_tokens] int32, from 0 in each request.
            cos_sin: [max_position, rotary_dim] float32, cosines then sines; None without rotation.
            prepared: What `prepare` returned for this step.
            bias: [num_heads, 2 * bias_span + 1] float32, contiguous, by distance; None without.

        Returns:
            [num_tokens, num_heads * head_dim], model dtype, contiguous.
        """
        ...
