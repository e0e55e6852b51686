"""Candidate `streaming_blocks` of slot `linear`: 8-bit floats with scales by block, on sm_90.

Few rows have kernel `streamed_blocks`, those that steps record and long prompts `many_blocks`, and
what lies between cuBLAS, which has such products since CUDA 12.9 and takes less of the host.
Weights whose parts share a block, and rows of other lengths, go through the portable kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Quantized, Verdict, accept_unless, renewed
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import blocks
from hotshoe_triton.device import KIB, SCORE
from hotshoe_triton.tuning import LinearConfig

#: Of x and of results.
DTYPES = ("bfloat16", "float16")
#: The most rows of x that share a configuration of `streamed_blocks`.
FEW = (4, 16, 32)
#: Output features, warps and stages of several rows: of small weights, and of large ones.
TILINGS = {16: ((64, 4, 3), (128, 8, 3)), 32: ((64, 4, 4), (64, 4, 2))}
#: The copy engine reads 16 bytes of scales at a time, as cuBLAS does, and so wide rows of results.
SCALES, OUTPUTS = 4, 16


class Tiling(NamedTuple):
    """How `many_blocks` divides its work.

    Attributes:
        outputs: Of a tile, 128 or 256.
        stages: Tiles of a ring.
        group: Tiles of rows whose programs run together.
        early: Whether programs come while the kernel in front still runs.
    """

    outputs: int
    stages: int
    group: int
    early: bool


#: Up to so many rows have the first tiling, and from so many rows on the second.
SOME, MANY = 512, 4096
NARROW, WIDE = Tiling(128, 5, 8, True), Tiling(256, 4, 16, False)


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
    """Choose `streamed_blocks` without measuring, for up to so many rows of x."""
    units, block_k = facts.compute_units, 2 * blocks.WIDTH
    if rows == FEW[0]:
        # Tiles are asked for while the kernel in front still runs, so its time is the weight's:
        # rings take a multiprocessor's shared memory, and only long rows are worth adding parts.
        block_n, warps, least = 64, 4, 48
    else:
        block_n, warps, stages = TILINGS[rows][n > 128 * units]
        least = 16
    tiles, split = -(-n // block_n), 1
    while split < 4 and split * tiles < units and k_blocks >= least * split:
        split *= 2
    if rows == FEW[0]:
        stages = 200 * KIB // ((block_n + 16) * block_k) // (1 + (split * tiles > units))
    return LinearConfig("streamed_blocks", block_n, block_k, split, warps, stages)


def parts(rows: int, n: int, k_blocks: int, facts: DeviceFacts) -> int:
    """Return how many programs of `many_blocks` divide a row, each with a multiprocessor of its own
    and counters among `n`."""
    tiles, split = -(-rows // blocks.HEIGHT) * -(-n // blocks.HEIGHT), 1
    while k_blocks >= 56 * split and not k_blocks % (8 * split):
        if 2 * split * tiles > min(facts.compute_units, n):
            break
        split *= 2
    return split


class Linear(blocks.Linear):
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._streams = {rows: stream(rows, self._n, self._blocks, facts) for rows in FEW}
        self._fits = not self._n % OUTPUTS and not self._blocks % SCALES
        self._by_row = torch.empty(0)

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        super().load(tensors)
        self._by_row = renewed(self._by_row, self._scale.T.contiguous())

    def configure(self, block: int, config: LinearConfig) -> None:
        """Use another configuration for so many rows in a tile; a tuner does."""
        (self._streams if config.kernel == "streamed_blocks" else self._configs)[block] = config

    def __call__(self, x: Tensor | Quantized) -> Tensor:
        rows = len(x if isinstance(x, Tensor) else x[0])
        if rows <= FEW[-1] or self._height != blocks.HEIGHT or not self._fits:
            return super().__call__(x)
        values, scale = self._quantized(x, -(-rows // SCALES) * SCALES)
        if rows <= SOME or rows >= MANY or self._y_dtype != torch.bfloat16:
            return self._multiply_many(values, scale)[:rows]
        scales = scale.T, self._by_row.T
        y = torch._scaled_mm(values, self._weight.t(), *scales, out_dtype=torch.bfloat16)[:rows]
        return y if self._bias is None else y.add_(self._bias)

    def _multiply(self, y: Tensor, values: Tensor, scale: Tensor) -> None:
        from hotshoe_cuda.kernels.blocks import streamed_blocks

        rows, n = len(y), self._n
        if rows > FEW[-1] or self._height != blocks.HEIGHT:
            super()._multiply(y, values, scale)
            return
        config = self._streams[next(most for most in FEW if rows <= most)]
        block = 16 if rows <= 16 else 32
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

    def _multiply_many(self, values: Tensor, scale: Tensor) -> Tensor:
        from hotshoe_cuda.kernels.many_blocks import many_blocks

        y = torch.empty((len(values), self._n), dtype=self._y_dtype, device=values.device)
        rows, n = y.shape
        outputs, stages, group, early = WIDE if rows >= MANY else NARROW
        split = parts(rows, n, self._blocks, self._facts) if outputs == blocks.HEIGHT else 1
        units = -(-rows // blocks.HEIGHT) * -(-n // outputs) * split
        cells = units * blocks.HEIGHT**2 if split > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        many_blocks[(min(self._facts.compute_units, units),)](
            self._tiles(y, 64, blocks.HEIGHT), self._tiles(values, 64, blocks.WIDTH),
            self._tiles(self._weight, outputs, blocks.WIDTH),
            y if self._bias is None else self._bias, self._by_row,
            self._tiles(scale.view(-1), blocks.HEIGHT), partial, self._counters, rows, n,
            self._blocks, split, units, BIAS=self._bias is not None, SPLIT=split > 1,
            GROUP_M=group, STAGES=stages, num_warps=4, launch_pdl=early,
        )  # fmt: skip
        return y

    def _tiles(self, tensor: Tensor, *shape: int) -> Any:
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        swizzle = 128 if len(shape) > 1 else 0
        layout = NVMMASharedLayout(swizzle, 8 * tensor.itemsize, len(shape))
        return TensorDescriptor.from_tensor(tensor, list(shape), layout)
