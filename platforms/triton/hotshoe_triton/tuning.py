"""Configurations of matrix products: the default for a shape, and the space a tuner searches.

A platform keeps what its tuner found as data, keyed by `(n, k, bucket)`; what is not there gets
`default`, which balances the programs over the compute units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from hotshoe.platform import DeviceFacts
from hotshoe.slots import LinearSpec
from hotshoe_triton.device import KIB, arch_of, next_power_of_2

#: Row counts that configurations are made for; a step uses the least one that holds it.
BUCKETS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class LinearConfig:
    """How one product is computed.

    Attributes:
        kernel: "gemv", "skinny", "library" for the vendor's, or one that a platform adds.
        block_n, block_k: Tile of the weight.
        split_k: Programs that share a tile's input dimension.
        warps, stages: Triton's num_warps and num_stages; a gemv unrolls its loop by stages.
        tile: The vendor's number of one, where a platform chooses among the library's algorithms.
    """

    kernel: str
    block_n: int = 0
    block_k: int = 0
    split_k: int = 1
    warps: int = 4
    stages: int = 1
    tile: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether there is a kernel to compile; the vendor's are."""
        return self.block_n > 0


LIBRARY = LinearConfig("library")


def itemsize_of(spec: LinearSpec) -> int:
    """Return the bytes of a weight's element that tiles are made for: of 16 bits, or of 8."""
    return 2 if spec.weight is None else 1


def default(bucket: int, n: int, k: int, itemsize: int, facts: DeviceFacts) -> LinearConfig:
    """Choose without measuring.

    Args:
        bucket: Rows of x.
        n, k: Output and input features.
        itemsize: Bytes of a weight's element.
        facts: The device.
    """
    arch = arch_of(facts)
    if bucket == 1 and itemsize > 1:
        block_k = min(next_power_of_2(k), 128 * 16 // itemsize)
        tiles, units = -(-n // 4), facts.compute_units
        # With so many programs a unit, an uneven last round costs less than adding up parts.
        split = 1 if tiles >= 8 * units else split_of(tiles, k, block_k, 4, units)
        return LinearConfig("gemv", 4, block_k, split, 4, 2)
    block_n = 64 if arch.backend == "cuda" else 32
    block_k = (256 if arch.shared_bytes > 100 * KIB else 128) // itemsize
    rows = max(16, bucket)
    stage_bytes = (block_n + rows) * block_k * itemsize
    stages = max(2, min(5, arch.shared_bytes // 2 // stage_bytes))
    if arch.backend == "hip":
        stages = 2
    split = split_of(-(-n // block_n), k, block_k, 4, facts.compute_units)
    return LinearConfig("skinny", block_n, block_k, split, 4, stages)


def split_of(tiles: int, k: int, block_k: int, min_steps: int, units: int) -> int:
    """Return the least split that gives every unit about the same number of programs."""
    best, best_share = 1, 0.0
    for split in (1, 2, 4, 8, 16):
        if split > 1 and k < split * block_k * min_steps:
            break
        per_unit = tiles * split / units
        share = per_unit / -(-tiles * split // units) if per_unit > 2 else per_unit / 8
        if share > best_share + 0.02:
            best, best_share = split, share
    return best


def configs(
    bucket: int, n: int, k: int, itemsize: int, facts: DeviceFacts
) -> Iterator[LinearConfig]:
    """Yield what a tuner should try; everything fits the device's shared memory."""
    if bucket == 1 and itemsize > 1:
        yield from _gemv_configs(k)
    arch = arch_of(facts)
    rows = max(16, bucket)
    for block_n, block_k, split, stages in product(
        (16, 32, 64, 128), (64, 128, 256, 512), (1, 2, 3, 4, 6, 8, 16), (2, 3, 4, 5, 6)
    ):
        small = (block_n + rows) * block_k * itemsize * stages <= arch.shared_bytes
        if small and (split == 1 or k >= split * block_k * 2):
            for warps in (4, 8) if block_n >= 64 else (2, 4):
                yield LinearConfig("skinny", block_n, block_k, split, warps, stages)
    yield LIBRARY


def _gemv_configs(k: int) -> Iterator[LinearConfig]:
    for block_n, block_k, split, warps, unroll in product(
        (1, 2, 4, 8, 16), (512, 1024, 2048), (1, 2, 4), (2, 4, 8), (1, 2, 4)
    ):
        if block_n * block_k <= 16384 and split * block_k <= k:
            yield LinearConfig("gemv", block_n, block_k, split, warps, unroll)
