"""Products by tuned kernels for few rows and by the vendor's library, through PyTorch, for many.

A batch of few tokens reads the whole weight for little arithmetic; there the streaming kernels of
`linear.py`, configured by what the platform tuned, come closer to the memory's speed. Wherever
tuning found the library faster, and for every larger batch, the library multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict
from hotshoe_triton import linear, tuned, tuning
from hotshoe_triton.tuning import BUCKETS, LinearConfig


class Linear(linear.Linear):
    """See `hotshoe.slots.LinearOp`. Each platform has a subclass of its own.

    Attributes:
        folder: Where the platform keeps its tables of tuned configurations.
        buckets: Row counts that there are configurations for.
    """

    folder: ClassVar[Path]
    buckets: ClassVar[Sequence[int]] = BUCKETS

    def __init__(
        self, spec: LinearSpec, facts: DeviceFacts, table: linear.Table | None = None
    ) -> None:
        found = tuned.table_for(self.folder, spec, facts) if table is None else table
        super().__init__(spec, facts, found)

    @staticmethod
    def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
        """Judge as for every GPU."""
        return linear.supports(spec, facts)

    @staticmethod
    def configs(bucket: int, spec: LinearSpec, facts: DeviceFacts) -> Iterator[LinearConfig]:
        """Yield what a tuner should try for a number of rows."""
        shape = (spec.out_features, spec.in_features)
        return tuning.configs(bucket, *shape, tuning.itemsize_of(spec), facts)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        super().load(tensors)
        self._transposed = self._weight.t()

    def configure(self, bucket: int, config: LinearConfig) -> None:
        """Use another configuration for a bucket of rows; the tuner does."""
        self._launches[BUCKETS.index(bucket)] = self._launch(config, bucket)

    def _many(self, y: Tensor, x: Tensor, quantized: tuple[Tensor, Tensor] | None) -> None:
        if quantized is None:
            self._unquantized(y, x)
        elif quantized[0].dtype is torch.int8 or y.dtype is not torch.bfloat16 or self._n % 16:
            # Libraries scale 8-bit floats by row into bfloat16 alone, 16 columns at least.
            super()._many(y, x, quantized)
        else:
            self._scaled(y, *quantized)

    def _scaled(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        """Multiply 8-bit floats."""
        assert self._scale is not None
        torch._scaled_mm(
            values,
            self._transposed,
            scale[:, None],
            self._scale[None, :],
            self._bias,
            out_dtype=y.dtype,
            use_fast_accum=True,
            out=y,
        )

    def _unquantized(self, y: Tensor, x: Tensor) -> None:
        if y.dtype is not x.dtype:
            torch.ops.aten.mm.dtype_out(x, self._transposed, y.dtype, out=y)
            if self._bias is not None:
                y.add_(self._bias)
        elif self._bias is None:
            torch.mm(x, self._transposed, out=y)
        else:
            torch.addmm(self._bias, x, self._transposed, out=y)
