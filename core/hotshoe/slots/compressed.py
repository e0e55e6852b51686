"""Attention to a window of tokens and to entries that stand for several tokens each: specifications
and call signatures. Free of torch.

Source: DeepSeek-V4's report, section 2.3, and the published weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.types.rows import RowForm

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import AttentionMetadata, CacheView, StepShape


@dataclass(frozen=True, slots=True)
class CompressSpec:
    """Entries of a cache, each made of the tokens of a group.

    Group e has the tokens from e * group on. A token brings a row: values, then gates. An entry is
    the sum of its tokens' values, channel by channel, weighted by the softmax over these tokens of
    gate + bias; then it is normed (RMS) where there is a norm, and its last channels are rotated by
    the position e * group. With `overlap` a token has two sets of values and gates: the first for
    the entry of the group behind its own, the second for that of its own. Entry 0 then has one
    group alone.

    An entry lies in the block of its group's last token, so that a block holds one for each group
    that ends there, and has room for one at least. One of `block_size` and `group` divides the
    other.

    Attributes:
        head_dim: Channels of an entry.
        rope_dim: The last ones, which are rotated, 0 for none; pairs are neighbors.
        group: Tokens of a group.
        norm_eps: Of the norm; None for no norm.
        dtype: Of the tokens' rows.
        kv_dtype: Of the entries.
    """

    head_dim: int
    rope_dim: int
    group: int
    overlap: bool
    norm_eps: float | None
    dtype: str
    kv_dtype: str
    block_size: int

    @property
    def channels(self) -> int:
        """Values of a token, as many as its gates."""
        return self.head_dim * (1 + self.overlap)

    @property
    def reach(self) -> int:
        """Tokens that an entry is made of."""
        return self.group * (1 + self.overlap)

    @property
    def per_block(self) -> int:
        """Entries that a block has room for."""
        return max(1, self.block_size // self.group)

    @property
    def token_row(self) -> RowForm:
        """What the cache of tokens keeps of one."""
        return RowForm(2 * self.channels, 0, self.dtype, self.dtype)

    @property
    def row(self) -> RowForm:
        """What the cache of entries keeps of one."""
        return RowForm(self.head_dim, 0, self.dtype, self.kv_dtype)


@dataclass(frozen=True, slots=True)
class CompressedAttentionSpec:
    """Attention to rows that are keys and values at once, of all heads: those of a window of
    tokens, and entries of whole groups behind which a query stands.

    A query at position p sees the tokens in (p - window, p], and of the entries of groups that end
    at p or before either all or those that were chosen for it. One softmax goes over both, with a
    learned logit of each head in its denominator. Values are rotated as keys, so the rotation of p
    is taken back from what a head puts out. Entries lie in blocks as `CompressSpec` says.

    Attributes:
        num_heads: This rank's.
        head_dim, rope_dim: Channels of a row, and the last ones, which are rotated; pairs are
            neighbors.
        group: Tokens of an entry's group; None for no entries.
        top_k: Most entries that are chosen for a query; None where it sees all.
        scale: Factor on q·k.
    """

    num_heads: int
    head_dim: int
    rope_dim: int
    window: int
    group: int | None
    top_k: int | None
    dtype: str
    kv_dtype: str
    block_size: int
    scale: float

    @property
    def per_block(self) -> int:
        """Entries that a block has room for."""
        return 0 if self.group is None else max(1, self.block_size // self.group)

    @property
    def row(self) -> RowForm:
        """What the cache of tokens keeps of one, and that of entries of one."""
        return RowForm(self.head_dim, 0, self.dtype, self.kv_dtype)


class CompressOp(Protocol):
    """Keeps the rows of tokens, and makes the entries of the groups that a step completes."""

    def write(self, rows: Tensor, tokens: Tensor, slot_mapping: Tensor) -> None:
        """Write what the step's tokens bring.

        Args:
            rows: [num_tokens, 2 * channels], values, then gates, model dtype.
            tokens: [num_blocks, block_size, 2 * channels]; written at slot_mapping, nowhere else.
            slot_mapping: [num_tokens] int32.
        """
        ...

    def turn(self, q: Tensor, positions: Tensor, cos_sin: Tensor) -> Tensor:
        """Rotate heads that are compared with entries, by the positions of their tokens.

        Args:
            q: [num_tokens, num_heads, head_dim], model dtype; may be overwritten.
            positions: [num_tokens] int32.
            cos_sin: [max_position, rope_dim] float32, cosines then sines.

        Returns:
            q, its last `rope_dim` channels rotated.
        """
        ...

    def __call__(
        self,
        tokens: Tensor,
        entries: Tensor,
        steps: tuple[AttentionMetadata, AttentionMetadata],
        bias: Tensor,
        norm: Tensor | None,
        cos_sin: Tensor,
    ) -> None:
        """Write entries; float32 inside. It runs behind the writes of all rows of the step.

        Args:
            tokens: [num_blocks, block_size, 2 * channels], the cache of tokens.
            entries: [num_blocks, per_block, head_dim], the cache of entries; written where the
                groups end whose last token is in this step, nowhere else.
            steps: The step over the cache of tokens, and over that of entries.
            bias: [group, channels] float32, of a token by its place in the group.
            norm: [head_dim], model dtype; None where entries are not normed.
            cos_sin: [max_position, rope_dim] float32, cosines then sines.
        """
        ...


class CompressedAttentionOp(Protocol):
    """Attention to a window and to entries. It writes the cache of tokens and reads both."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, as `AttentionOp.prepare` does; called for either cache."""
        ...

    def write(
        self,
        q: Tensor,
        row: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Rotate q and rows, and write the step's rows; it runs before anything of them is read.

        Args:
            q: [num_tokens, num_heads, head_dim], normed, model dtype; may be overwritten.
            row: [num_tokens, head_dim], normed, not yet rotated.
            positions: [num_tokens] int32.
            cos_sin: [max_position, rope_dim] float32, cosines then sines.
            cache: [num_blocks, block_size, head_dim]; written at slot_mapping, nowhere else.
            slot_mapping: [num_tokens] int32.

        Returns:
            q, rotated.
        """
        ...

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: Any,
        entries: tuple[Tensor, Any, Tensor | None] | None,
        sinks: Tensor,
        cos_sin: Tensor,
    ) -> Tensor:
        """Attend; float32 inside.

        Args:
            q: What `write` returned.
            cache: As for `write`, this step's rows written.
            prepared: What `prepare` returned for the cache of tokens.
            entries: The cache of entries, what `prepare` returned for it, and the chosen ones
                [num_tokens, top_k] int32, -1 for none, where the specification has `top_k`; None
                without a `group`.
            sinks: [num_heads] float32, a logit of each head.
            cos_sin: As for `write`.

        Returns:
            [num_tokens, num_heads * head_dim], model dtype.
        """
        ...
