"""Candidate `streaming_blocks` of slot `linear`: 8-bit floats with scales by block, on sm_90.

Few rows have kernel `streamed_blocks`, and many cuBLAS, which has such products since CUDA 12.9.
Weights whose parts share a block, and what cuBLAS does not take, go through the portable kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, Verdict, accept_unless, renewed
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import blocks
from hotshoe_triton.device import SCORE
from hotshoe_triton.tuning import LinearConfig

#: Of x and of results.
DTYPES = ("bfloat16", "float16")
#: By rows of x in a tile: output features, warps and stages, of small weights and of large ones.
TILINGS = {16: ((64, 4, 3), (128, 8, 3)), 32: ((64, 4, 4), (64, 4, 2))}
#: Rows of x in a tile. cuBLAS multiplies more.
TILES = tuple(TILINGS)
#: cuBLAS reads so many scales of a column at once, and outputs.
SCALES, OUTPUTS = 4, 16


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge what the kernel is written for; the rest as the portable one does."""
    portable = blocks.supports(spec, facts)
    if not portable.accepted:
        return portable
    missing = missing_gluon(facts)
    types = {spec.dtype, spec.out_dtype or spec.dtype}
    refusals = {
        missing: bool(missing),
        f"types {', '.join(sorted(types))} are not all of {', '.join(DTYPES)}": not types
        <= set(DTYPES),
    }
    return accept_unless(refusals, SCORE + 1, "the copy engine brings few rows")


def stream(rows: int, n: int, k_blocks: int, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring, for so many rows of x in a tile."""
    units = facts.compute_units
    block_n, warps, stages = TILINGS[rows][n > 128 * units]
    tiles, split = -(-n // block_n), 1
    while split < 4 and split * tiles < units and k_blocks >= 16 * split:
        split *= 2
    return LinearConfig("streamed_blocks", block_n, 2 * blocks.WIDTH, split, warps, stages)


class Linear(blocks.Linear):
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._streams = {rows: stream(rows, self._n, self._blocks, facts) for rows in TILES}
        self._fits = self._y_dtype == torch.bfloat16
        self._fits &= not self._n % OUTPUTS and not self._blocks % SCALES
        self._by_row = torch.empty(0)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        super().load(tensors)
        self._by_row = renewed(self._by_row, self._scale.T.contiguous())

    def configure(self, block: int, config: LinearConfig) -> None:
        """Use another configuration for so many rows in a tile; a tuner does."""
        (self._streams if config.kernel == "streamed_blocks" else self._configs)[block] = config

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        rows = len(x if isinstance(x, Tensor) else x[0])
        if rows <= TILES[-1] or self._height != blocks.HEIGHT or not self._fits:
            return super().__call__(x)
        values, scale = self._quantized(x, -(-rows // SCALES) * SCALES)
        scales = scale.T, self._by_row.T
        y = torch._scaled_mm(values, self._weight.t(), *scales, out_dtype=torch.bfloat16)[:rows]
        return y if self._bias is None else y.add_(self._bias)

    def _multiply(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        from hotshoe_cuda.kernels.blocks import streamed_blocks

        rows, n = len(y), self._n
        if rows > TILES[-1] or self._height != blocks.HEIGHT:
            super()._multiply(y, values, scale)
            return
        block = next(size for size in TILES if rows <= size)
        config = self._streams[block]
        split, per_step = config.split_k, config.block_k // blocks.WIDTH
        tiles = -(-n // config.block_n)
        cells = tiles * split * config.block_n * block if split > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        streamed_blocks[tiles, split](
            y, self._tiles(values, block, config.block_k),
            self._tiles(self._weight, config.block_n, config.block_k),
            y if self._bias is None else self._bias, self._by_row, scale, partial, self._counters,
            rows, n, self._blocks, split, -(-self._blocks // (split * per_step)),
            BIAS=self._bias is not None, WIDTH=blocks.WIDTH, HEIGHT=blocks.HEIGHT, BLOCK_M=block,
            BLOCK_N=config.block_n, SPLIT=split > 1, STAGES=config.stages, num_warps=config.warps,
            launch_pdl=True,
        )  # fmt: skip

    def _tiles(self, tensor: Tensor, rows: int, columns: int) -> Any:
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(128, 8, 2)
        return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)
