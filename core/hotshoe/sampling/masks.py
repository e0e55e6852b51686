"""Token masks: forbids what the grammars of some rows do not allow, in one pass over a batch.

A mask is packed, one bit for each token, and is unpacked on the device: a table turns each byte
into eight, one for each token that may not come. Used by `Sampler`.
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
        # Eight flags move as one number, which is what makes the look-up fast.
        self._forbidden = place((1 - bits).view(np.int64)[:, 0].copy(), device)

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
        at = np.flatnonzero(np.isin(rows, mask_rows))
        packed = place(np.frombuffer(b"".join(masks), np.uint8).astype(np.int32), logits.device)
        flags = self._forbidden.index_select(0, packed).view(torch.bool)
        forbidden = flags.view(len(at), -1)[:, : logits.shape[1]]
        if len(at) == len(rows):
            logits.masked_fill_(forbidden, NEVER)
        else:
            where = place(at, logits.device)
            some = logits.index_select(0, where).masked_fill_(forbidden, NEVER)
            logits.index_copy_(0, where, some)
