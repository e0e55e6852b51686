"""Call signatures of operations that mix tokens over a cache of another kind than keys and values.

As in `hotshoe.slots.operations`: tensors lie on the device, and operations neither synchronise with
the host nor allocate more than their outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from hotshoe.slots.operations import CacheView, StepShape


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
            cache: [num_blocks, block_size, latent_dim + rope_dim], kv dtype; written at
                slot_mapping, nowhere else.
            slot_mapping: [num_tokens] int32.

        Returns:
            q, rotated; may be a view of what was given.
        """
        ...

    def __call__(self, q: Tensor, cache: Tensor, prepared: Any) -> Tensor:
        """Attend.

        Args:
            q: What `write` returned.
            cache: As for `write`, this step's rows written.
            prepared: What `prepare` returned for this step.

        Returns:
            [num_tokens, num_heads * v_dim], model dtype, contiguous.
        """
        ...
