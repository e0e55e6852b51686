"""Call signatures of operations that mix tokens over a cache of another kind than keys and values.

As in `hotshoe.slots.operations`: tensors lie on the device, and operations neither synchronize with
the host nor allocate more than their outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.step import CacheView, StepShape


class LatentAdapters(Protocol):
    """What a step's adapters make of U and V of latent attention. Each token has its own."""

    def widen(self, wide: Tensor, q: Tensor) -> None:
        """Add to what U made of q, in place.

        Args:
            wide: [num_tokens, num_heads, latent_dim], contiguous, model dtype.
            q: [num_tokens, num_heads, nope_dim + rope_dim], contiguous.
        """
        ...

    def values(self, out: Tensor, mixed: Tensor) -> None:
        """Add to what V made of averages of latents, in place.

        Args:
            out: [num_tokens, num_heads, v_dim], contiguous, model dtype.
            mixed: [num_tokens, num_heads, latent_dim], contiguous, model dtype.
        """
        ...


class MlaAttentionOp(Protocol):
    """Multi-head latent attention. It writes the cache and reads it.

    A query may attend in two ways of equal result. Absorbed: U_h takes q to the size of a cache
    row, so that rows are read as they lie, and V_h is applied once, to the result. Up-projected:
    each row becomes a key and a value per head. The operation chooses; the first reads least where
    few queries meet many rows, the second computes least where prompts are long.
    """

    def load(self, up: Tensor) -> None:
        """Take the matrix [num_heads, nope_dim + v_dim, latent_dim], model dtype.

        Called again, it overwrites what it holds where that lies, as `LinearOp.load` does.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what is held, as `LinearOp.state` does: "weight" where rows are readable."""
        ...

    def nbytes(self) -> int:
        """Return the bytes that the prepared matrix holds."""
        ...

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, as `AttentionOp.prepare` does."""
        ...

    def write(
        self,
        q: Tensor,
        latent: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Rotate q and the key, and write the step's rows; it runs before anything of them is read.

        Args:
            q: [num_tokens, num_heads, nope_dim + rope_dim], model dtype; may be overwritten.
            latent: [num_tokens, latent_dim], normed.
            key: [num_tokens, rope_dim], not yet rotated; token stride free.
            positions: [num_tokens] int32.
            cos_sin: [max_position, rope_dim] float32, cosines then sines.
            cache: [num_blocks, block_size, width], rows as `MlaAttentionSpec.row` says, of the
                kv dtype or bytes; written at slot_mapping, nowhere else.
            slot_mapping: [num_tokens] int32.

        Returns:
            q, rotated; may be a view of what was given.
        """
        ...

    def __call__(
        self, q: Tensor, cache: Tensor, prepared: Any, adapters: LatentAdapters | None = None
    ) -> Tensor:
        """Attend.

        Args:
            q: What `write` returned.
            cache: As for `write`, this step's rows written.
            prepared: What `prepare` returned for this step.
            adapters: Only where `MlaAttentionSpec.adapted` says so: all queries attend the absorbed
                way then. It has a part in U's results, and in V's.

        Returns:
            [num_tokens, num_heads * v_dim], model dtype, contiguous.
        """
        ...


class SparseMlaOp(Protocol):
    """Latent attention over chosen rows. All but the call is as in `MlaAttentionOp`."""

    def load(self, up: Tensor) -> None:
        """See `MlaAttentionOp.load`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """See `MlaAttentionOp.state`."""
        ...

    def nbytes(self) -> int:
        """See `MlaAttentionOp.nbytes`."""
        ...

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, as `AttentionOp.prepare` does."""
        ...

    def write(
        self,
        q: Tensor,
        latent: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """See `MlaAttentionOp.write`."""
        ...

    def __call__(
        self,
        q: Tensor,
        cache: Tensor,
        prepared: Any,
        chosen: Tensor,
        adapters: LatentAdapters | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q: What `write` returned.
            cache: As for `write`, this step's rows written.
            prepared: What `prepare` returned for this step.
            chosen: [num_tokens, top_k] int32, as `IndexerOp` returns it.
            adapters: As for `MlaAttentionOp`.
            sinks: [num_heads] float32, where the specification has them; else left out.

        Returns:
            [num_tokens, num_heads * v_dim], model dtype, contiguous.
        """
        ...


class IndexerKeysOp(Protocol):
    """The part that `IndexerOp` and `BlockIndexerOp` share: a cache of keys, planned, written."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, as `AttentionOp.prepare` does."""
        ...

    def write(
        self,
        q: Tensor,
        key: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        """Rotate q and keys, and write the step's keys; it runs before anything of them is read.

        Args:
            q: [num_tokens, num_heads, head_dim], model dtype; may be overwritten.
            key: [num_tokens, head_dim], normed, not yet rotated.
            positions: [num_tokens] int32.
            cos_sin: [max_position, rope_dim] float32, cosines then sines.
            cache: [num_blocks, block_size, width], rows as the specification's `row` says, of the
                kv dtype or bytes; written at slot_mapping, nowhere else.
            slot_mapping: [num_tokens] int32.

        Returns:
            q, rotated; may be a view of what was given.
        """
        ...


class IndexerOp(IndexerKeysOp, Protocol):
    """The choice of tokens that a query attends to. It reads the cache of keys that it writes as
    an `IndexerKeysOp`."""

    def __call__(self, q: Tensor, weights: Tensor, cache: Tensor, prepared: Any) -> Tensor:
        """Choose; float32 inside.

        Args:
            q: What `write` returned.
            weights: [num_tokens, num_heads] float32, of either sign.
            cache: As for `write`, this step's keys written.
            prepared: What `prepare` returned for this step.

        Returns:
            [num_tokens, top_k] int32: positions of the token's sequence, each once, in any order,
            then -1 where there are fewer. Of equal scores, any may be chosen.
        """
        ...


@dataclass(frozen=True, slots=True)
class StateSpaceWeights:
    """Weights of a state-space block beside its projections; on the device, this rank's part.

    Attributes:
        conv: [conv_size, conv_width], model dtype; the last column is for the token itself.
        conv_bias: [conv_size], model dtype, or None.
        a: [num_heads] float32, negative: a state decays by exp(dt * a).
        d: [num_heads] float32, the factor of x that passes the scan by.
        dt_bias: [num_heads] float32, added to dt before softplus.
        norm: [inner_size], model dtype; None where the specification has no norm.
    """

    conv: Tensor
    conv_bias: Tensor | None
    a: Tensor
    d: Tensor
    dt_bias: Tensor
    norm: Tensor | None


class StateSpaceOp(Protocol):
    """A Mamba-2 block between its projections, over the states that its cache keeps."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step, as `AttentionOp.prepare` does.

        A sequence of L tokens in all, n of them in this step, has a state if L > n: it is read from
        column (L - n - 1) // block_size of the block table, or from column 0 with checkpoints
        "none". The new one is written to column (L - 1) // block_size, or 0. With "all", the state
        behind every token of the step whose position is the last of a block is written to that
        block's column too. No block is written that another sequence reads.
        """
        ...

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Any,
        weights: StateSpaceWeights,
    ) -> Tensor:
        """Compute a step's tokens; float32 inside.

        Args:
            projected: [num_tokens, inner_size + conv_size + num_heads], model dtype: z, x, B, C,
                dt. May be overwritten.
            cache: conv [num_blocks, conv_width - 1, conv_size], the last inputs of the convolution,
                the oldest first; ssm [num_blocks, num_heads, head_dim, state_size].
            prepared: What `prepare` returned for this step.
            weights: The block's.

        Returns:
            [num_tokens, inner_size], model dtype, contiguous.
        """
        ...


@dataclass(frozen=True, slots=True)
class SelectiveScanWeights:
    """Weights of a Mamba-1 block beside its projections; on the device.

    Attributes:
        conv: [inner_size, conv_width], model dtype; the last column is for the token itself.
        conv_bias: [inner_size], model dtype; None for none.
        project: [dt_rank + 2 * state_size, inner_size], model dtype: makes the numbers of the steps
            of time, B and C.
        dt: [inner_size, dt_rank], model dtype.
        dt_bias: [inner_size] float32, added to the steps of time before softplus.
        a: [inner_size, state_size] float32, negative: a state decays by exp(dt * a).
        d: [inner_size] float32, the factor of x that passes the scan by.
        norm: [dt_rank + 2 * state_size], model dtype, the norms' weights; None for ones, or where
            the specification has no norms.
    """

    conv: Tensor
    conv_bias: Tensor | None
    project: Tensor
    dt: Tensor
    dt_bias: Tensor
    a: Tensor
    d: Tensor
    norm: Tensor | None


class SelectiveScanOp(Protocol):
    """A Mamba-1 block between its projections, over the states that its cache keeps."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step; states are read and written as `StateSpaceOp.prepare` says."""
        ...

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Any,
        weights: SelectiveScanWeights,
    ) -> Tensor:
        """Compute a step's tokens; float32 inside.

        Args:
            projected: [num_tokens, 2 * inner_size], model dtype: x, then z. May be overwritten.
            cache: conv [num_blocks, conv_width - 1, inner_size], the last inputs of the
                convolution, the oldest first; states [num_blocks, 1, inner_size, state_size].
            prepared: What `prepare` returned for this step.
            weights: The block's.

        Returns:
            [num_tokens, inner_size], model dtype, contiguous.
        """
        ...


@dataclass(frozen=True, slots=True)
class RgLruWeights:
    """Weights of a recurrent block beside its projections; on the device.

    Attributes:
        conv: [inner_size, conv_width], model dtype; the last column is for the token itself.
        conv_bias: [inner_size], model dtype.
        gates: [num_heads, head_dim, 2 * head_dim] float32: makes, of a head's channels, the gate of
            the input, then that of the decay.
        gate_bias: [2, inner_size] float32, of both.
        rate: [inner_size] float32, negative: a state decays by exp(rate * sigmoid(gate)).
    """

    conv: Tensor
    conv_bias: Tensor
    gates: Tensor
    gate_bias: Tensor
    rate: Tensor


class RgLruOp(Protocol):
    """A recurrent block between its projections, over the states that its cache keeps."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step; states are read and written as `StateSpaceOp.prepare` says."""
        ...

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Any,
        weights: RgLruWeights,
    ) -> Tensor:
        """Compute a step's tokens; float32 inside.

        With a = exp(rate * sigmoid(decay)) the state becomes a * state + sqrt(1 - a^2) *
        sigmoid(input) * x, and at a text's first token sigmoid(input) * x. The result is the state
        times GELU, by tanh, of the gate behind.

        Args:
            projected: [num_tokens, 2 * inner_size], model dtype: x, then the gate behind. May be
                overwritten.
            cache: conv [num_blocks, conv_width - 1, inner_size], the last inputs of the
                convolution, the oldest first; states [num_blocks, 1, inner_size, 1].
            prepared: What `prepare` returned for this step.
            weights: The block's.

        Returns:
            [num_tokens, inner_size], model dtype, contiguous.
        """
        ...


@dataclass(frozen=True, slots=True)
class ShortConvWeights:
    """What a short convolution has beside its projections; on the device.

    Attributes:
        conv: [inner_size, conv_width], model dtype; the last column is for the token itself.
        conv_bias: [inner_size], model dtype; None for none.
    """

    conv: Tensor
    conv_bias: Tensor | None


class ShortConvOp(Protocol):
    """A short convolution between two gates, over the inputs that its cache keeps."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step; inputs are read and written as `StateSpaceOp.prepare` says of states."""
        ...

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor],
        prepared: Any,
        weights: ShortConvWeights,
    ) -> Tensor:
        """Compute a step's tokens; float32 inside.

        Args:
            projected: [num_tokens, 3 * inner_size], model dtype: the gate before the convolution,
                the gate behind, then x. May be overwritten.
            cache: [num_blocks, conv_width - 1, inner_size], the last inputs of the convolution,
                gated, the oldest first.
            prepared: What `prepare` returned for this step.
            weights: The block's.

        Returns:
            [num_tokens, inner_size], model dtype, contiguous.
        """
        ...


@dataclass(frozen=True, slots=True)
class GatedDeltaWeights:
    """What a gated-delta block has beside its projections; on the device, all of this rank.

    Attributes:
        conv: [conv_size, conv_width], model dtype; the last column is for the token itself.
        a: [num_heads] float32, negative: a state decays by exp(a * softplus(decay + dt_bias)).
        dt_bias: [num_decays] float32.
        norm: [value_dim], model dtype, the same for all heads.
    """

    conv: Tensor
    a: Tensor
    dt_bias: Tensor
    norm: Tensor


class GatedDeltaOp(Protocol):
    """Linear attention with the gated delta rule, over the states that its cache keeps."""

    def prepare(self, shape: StepShape, view: CacheView) -> Any:
        """Plan a step; states are read and written as `StateSpaceOp.prepare` says."""
        ...

    def __call__(
        self,
        projected: Tensor,
        cache: tuple[Tensor, Tensor],
        prepared: Any,
        weights: GatedDeltaWeights,
    ) -> Tensor:
        """Compute a step's tokens; float32 inside.

        Args:
            projected: [num_tokens, conv_size + inner_size + num_heads + num_decays], model dtype:
                q, k and v, the gate z, beta before its sigmoid, decays. May be overwritten.
            cache: conv [num_blocks, conv_width - 1, conv_size], the last inputs of the convolution,
                the oldest first; states [num_blocks, num_heads, value_dim, key_dim].
            prepared: What `prepare` returned for this step.
            weights: The block's.

        Returns:
            [num_tokens, inner_size], model dtype, contiguous.
        """
        ...
