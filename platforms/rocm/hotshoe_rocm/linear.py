"""Candidate `streaming` of slot `linear`; the library is hipBLASLt, through PyTorch.

What PyTorch's ROCm builds do not offer of it runs on the portable kernels instead.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from hotshoe_triton import library
from hotshoe_triton.tuning import BUCKETS, default

ROWS = BUCKETS[-1]


class Linear(library.Linear):
    """See `hotshoe.slots.LinearOp`."""

    folder = Path(__file__).parent / "tuned"

    def _unquantized(self, y: Tensor, x: Tensor) -> None:
        """Multiply; results wider than the operands, as logits are, take the streaming kernel.

        PyTorch refuses such products on ROCm: "input type BFloat16 and output type float".
        """
        if y.dtype is x.dtype:
            super()._unquantized(y, x)
            return
        config = default(ROWS, self._n, self._k, x.itemsize, self._facts)
        streaming = self._launch(config, ROWS)
        for first in range(0, len(x), ROWS):
            streaming(y[first : first + ROWS], x[first : first + ROWS], None)
