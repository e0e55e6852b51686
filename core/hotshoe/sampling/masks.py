"""Token masks: forbids what the grammars of some rows do not allow, in one pass over a batch.

A mask is packed, one bit for each token, and is unpacked on the device: a table turns each byte
into the most that eight logits may be. Taking the lesser needs no branch for each token, which
filling would cost. Used by `Sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotshoe.sampling.rows import Ints, place
from hotshoe.sampling.stages import NEVER

#: For limits at a time; those of one row may take more.
ROOM_BYTES = 32 << 20


class TokenMasks:
    """Applies masks to logits.

    Args:
        device: Where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._limits = place(np.where(bits == 1, -NEVER, NEVER).astype(np.float32), device)

    def apply(
        self, logits: Tensor, rows: Ints, mask_rows: Sequence[int], masks: Sequence[bytes]
    ) -> None:
        """Forbid tokens in place.

        Args:
            logits: [n, vocab_size] float32.
            rows: [n], to which the logits belong.
            mask_rows: Those of `rows` that have a mask, in the same order and as often.
            masks: One for each, as in `StepPlan.masks`, for at least vocab_size tokens.
        """
        packed = place(np.frombuffer(b"".join(masks), np.uint8).astype(np.int32), logits.device)
        where = None
        if len(mask_rows) < len(rows):
            where = place(np.flatnonzero(np.isin(rows, mask_rows)), logits.device)
        masked = logits if where is None else logits.index_select(0, where)
        packed = packed.view(len(masks), -1)
        num_rows = max(1, ROOM_BYTES // (32 * packed.shape[1]))
        for first in range(0, len(masks), num_rows):
            part, packs = masked[first : first + num_rows], packed[first : first + num_rows]
            limits = self._limits.index_select(0, packs.flatten()).view(len(part), -1)
            torch.minimum(part, limits[:, : logits.shape[1]], out=part)
        if where is not None:
            logits.index_copy_(0, where, masked)
