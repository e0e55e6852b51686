"""Candidate `packed` of slot `linear`: numbers of four bits with few rows of x, on sm_90.

Weights lie as `hotshoe_triton.groups` packs them. More rows, and an x that the copy engine cannot
read, go through its kernels. One row has a kernel of its own, `one_row`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec, Verdict, accept_unless
from hotshoe_cuda.linear import missing_gluon
from hotshoe_triton import groups
from hotshoe_triton.device import KIB, SCORE, arch_of
from hotshoe_triton.tuning import LinearConfig

DTYPES = ("bfloat16", "float16")
#: Rows of x in a tile, each with output features of the tile and warps.
TILES = {8: (128, 8), 16: (64, 4), 32: (64, 4), 64: (64, 4), 128: (64, 4)}
#: The same where those are more than two for each multiprocessor: x is read less often.
WIDE = {32: (128, 4), 128: (128, 8)}
#: Columns of a chunk whose groups are wide, so that a program seldom scales its sums.
LONG = 256
#: Warps of a multiprocessor that registers suffice for.
WARPS = 20
#: Columns of x that kernel `one_row` holds at most, those of a step, and those of its groups.
MOST, STEP, GROUP = 16384, 1024, 128
#: Zero points that it takes.
ZEROS_ALONE = ("half", "inside")
#: Registers of its threads at the start: two programs fit a multiprocessor.
REGISTERS = 64


def supports(spec: LinearSpec, facts: DeviceFacts) -> Verdict:
    """Judge what the kernel is written for; the rest as the portable ones do."""
    portable = groups.supports(spec, facts)
    if not portable.accepted:
        return portable
    assert spec.weight is not None
    missing = missing_gluon(facts)
    refusals = {
        missing: bool(missing),
        f"element type {spec.dtype} is not one of {', '.join(DTYPES)}": spec.dtype not in DTYPES,
        f"weights {spec.weight} do not have four bits": groups.BITS[spec.weight.format] != 4,
        f"groups of {groups.STRIP} are those of 4-bit floats alone": spec.weight.group_size
        == groups.STRIP
        and not groups.scaled_by_bytes(spec.weight),
    }
    return accept_unless(refusals, SCORE + 1, "the copy engine brings weights of few rows")


def stream(rows: int, spec: LinearSpec, chunk: int, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring: programs that are there at once, if partial sums stay small."""
    k, units, long = spec.in_features, facts.compute_units, chunk >= LONG
    block_n, warps = TILES[rows]
    if -(-spec.out_features // block_n) > 2 * units and (long or rows > 32):
        block_n, warps = WIDE.get(rows, (block_n, warps))
    tiles, slot_bytes = -(-spec.out_features // block_n), (block_n // 4 + rows) * chunk * 2

    def fit(stages: int) -> int:
        """Return the programs that a multiprocessor holds with so long a ring."""
        held = arch_of(facts).shared_bytes // (stages * slot_bytes + KIB)
        return min(WARPS // warps, held)

    stages = 3 if tiles <= fit(3) * units else 2
    split, room = 1, fit(stages) * units
    while 2 * split * tiles <= room and 4 * split * chunk <= k and 32 * split * rows <= k:
        split *= 2
    if long and rows > 8 and fit(4) > 1 and split * tiles <= fit(4) * units:
        stages = 4
    return LinearConfig("packed", block_n, chunk, split, warps, stages)


def alone(spec: LinearSpec, facts: DeviceFacts) -> dict[str, int]:
    """Return constants and the grid of kernel `one_row`; none where it does not suit."""
    n, k, units = spec.out_features, spec.in_features, facts.compute_units
    assert spec.weight is not None
    if spec.weight.group_size != GROUP or k % (2 * GROUP) or n % 4 or k > MOST:
        return {}
    block_n = 32 if n > 32 * units else 16
    padded = max(STEP, 1 << (k - 1).bit_length())
    room = arch_of(facts).shared_bytes // 2 - 2 * padded - padded // 16 - KIB
    tiles = -(-n // block_n)
    programs = min(tiles, 2 * -(-tiles // -(-tiles // units)))
    needed = -(-tiles // programs) * -(-k // STEP)
    return {
        "programs": programs,
        "PADDED": padded,
        "BLOCK_N": block_n,
        "STAGES": min(room // (4 * block_n * (GROUP + 8)), needed, 9),
        "num_warps": block_n // 4,
    }


class Linear(groups.Linear):
    """See `hotshoe.slots.LinearOp`."""

    def __init__(self, spec: LinearSpec, facts: DeviceFacts) -> None:
        super().__init__(spec, facts)
        self._alone = alone(spec, facts)
        self._streams = {rows: stream(rows, spec, self._chunk, facts) for rows in TILES}
        self._descs: dict[int, Any] = {}

    def load(self, tensors: Mapping[str, Sequence[Tensor]]) -> None:
        super().load(tensors)
        self._descs.clear()

    def configure(self, block: int, config: LinearConfig) -> None:
        (self._streams if config.kernel == "packed" else self._configs)[block] = config

    def _tiles(self, tensor: Tensor, rows: int, columns: int) -> Any:
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        layout = NVMMASharedLayout(2 * self._span, 16, 2)
        return TensorDescriptor.from_tensor(tensor, [rows, columns], layout)

    def _words_of(self, block_n: int) -> Any:
        if block_n not in self._descs:
            words = self._words.view(-1, self._span)
            self._descs[block_n] = self._tiles(words, block_n, self._span)
        return self._descs[block_n]

    def _tiles_alone(self) -> tuple[Any, Any]:
        """Return words and scales as kernel `one_row` takes them."""
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        if 0 not in self._descs:
            words, block_n = self._words.view(torch.int8), self._alone["BLOCK_N"]
            scales = self._scale.view(self._chunks, 2, self._n).transpose(0, 1)
            plain, swizzled = NVMMASharedLayout(0, 32, 3), NVMMASharedLayout(GROUP, 8, 3)
            self._descs[0] = (
                TensorDescriptor.from_tensor(words, [4, block_n, GROUP], swizzled),
                TensorDescriptor.from_tensor(scales, [2, 4, block_n], plain),
            )
        return self._descs[0]

    def _one(self, y: Tensor, x: Tensor) -> None:
        from hotshoe_cuda.kernels import one_row

        constants = dict(self._alone)
        programs = constants.pop("programs")
        bias = self._scale if self._bias is None else self._bias
        one_row.one_row[(programs,)](
            y, x, *self._tiles_alone(), bias, self._n, self._k, -(-self._n // constants["BLOCK_N"]),
            -(-self._k // STEP), ZEROS=self._zeros, BIAS=self._bias is not None,
            maxnreg=REGISTERS, launch_pdl=True, **constants,
        )  # fmt: skip

    def _few(self, y: Tensor, x: Tensor) -> None:
        from hotshoe_cuda.kernels import packed

        rows = len(x)
        block = next((size for size in TILES if rows <= size), 0)
        if not block or (x.stride(0) * 2 | x.data_ptr()) % 16:
            super()._few(y, x)
            return
        if rows == 1 and self._alone and self._zeros in ZEROS_ALONE:
            self._one(y, x)
            return
        config = self._streams[block]
        split = config.split_k
        grid = (-(-self._n // config.block_n), split)
        cells = split * rows * self._n if split > 1 else 0
        partial = torch.empty(cells, dtype=torch.float32, device=y.device) if cells else y
        bias = self._scale if self._bias is None else self._bias
        x_tiles = self._tiles(x, block, self._chunk)
        packed.packed[grid](
            y, x_tiles, self._words_of(config.block_n), *self._held()[1:], bias, partial,
            self._counters, rows, self._n, self._k, -(-self._chunks // split),
            GROUP=self._quant.group_size or groups.WHOLE_ROW, ZEROS=self._zeros,
            BIAS=self._bias is not None, SPAN=self._span, BLOCK_M=block, BLOCK_N=config.block_n,
            SPLIT_K=split, STAGES=config.stages, num_warps=config.warps, launch_pdl=True,
        )  # fmt: skip
