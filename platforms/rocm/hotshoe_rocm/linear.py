"""Candidate `streaming` of slot `linear`; the library is hipBLASLt, through PyTorch.

What PyTorch's ROCm builds do not offer of it runs on the portable kernels instead.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from hotshoe_triton import library
from hotshoe_triton.linear import Linear as Portable
from hotshoe_triton.tuning import BUCKETS, default

ROWS = BUCKETS[-1]


class Linear(library.Linear):
    """See `hotshoe.slots.LinearOp`."""

    folder = Path(__file__).parent / "tuned"

    def _scaled(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        """Multiply 8-bit floats; hipBLASLt scales by row into bfloat16 alone, 16 columns at least.

        Source: the checks of PyTorch's `_scaled_mm` for ROCm builds.
        """
        if y.dtype is torch.bfloat16 and self._n % 16 == 0:
            super()._scaled(y, values, scale)
        else:
            Portable._many(self, y, values, (values, scale))

    def _unquantised(self, y: Tensor, x: Tensor) -> None:
        """Multiply; results wider than the operands, as logits are, take the streaming kernel.

        PyTorch refuses such products on ROCm: "input type BFloat16 and output type float".
        """
        if y.dtype is x.dtype:
            super()._unquantised(y, x)
            return
        config = default(ROWS, self._n, self._k, x.itemsize, self._facts)
        streaming = self._launch(config, ROWS)
        for first in range(0, len(x), ROWS):
            streaming(y[first : first + ROWS], x[first : first + ROWS], None)
