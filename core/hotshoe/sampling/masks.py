"""Token masks: forbids what the grammars of some rows do not allow, in one pass over a batch.

A mask is packed, one bit for each token, and is unpacked on the device: a table turns each byte
into eight summands, 0 for a token that may come and minus infinity for others. Used by `Sampler`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hotshoe.sampling.rows import Ints
from hotshoe.sampling.stages import NEVER, place


class TokenMasks:
    """Applies masks to logits.

    Args:
        device: Where the logits are.
    """

    def __init__(self, device: torch.device) -> None:
        bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._summands = place(np.where(bits, 0.0, NEVER).astype(np.float32), device)

    def apply(
        self, logits: Tensor, rows: Ints, mask_rows: Sequence[int], masks: Sequence[bytes]
    ) -> None:
        """Forbid tokens in place.

        Args:
            logits: [n, vocab_size] float32.
            rows: [n], distinct, to which the logits belong.
            mask_rows: Those of `rows` that have a mask.
            masks: One for each, as in `StepPlan.masks`, for at least vocab_size tokens.
        """
        order = np.argsort(rows)
        at = order[np.searchsorted(rows, mask_rows, sorter=order)]
        packed = np.frombuffer(b"".join(masks), np.uint8).astype(np.int32)
        device = self._summands.device
        summands = self._summands.index_select(0, place(packed, device)).view(len(masks), -1)
        logits.index_add_(0, place(at, device), summands[:, : logits.shape[1]])
