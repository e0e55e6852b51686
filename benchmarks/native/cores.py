"""Show how fast each core computes from its own caches now: what neighbors leave of a machine.

Run by hand: `python benchmarks/native/cores.py [--seconds 3] [--isa amx]`, before and after what is
measured on a machine that others use too. Cores take short turns. Each line gives the median and
the best rate of a core, and how often it reached 75 % of the best of all; the last one the best
two, as `taskset -c` takes them. The two states of a core with AMX tiles are told in
docs/decisions/0026-tiles-zeroed-after-their-last-product.md.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from types import ModuleType

import torch

import hotshoe_native

# 32 columns of W in the first-level cache at a time, x in the second; packing x is a small part.
ROWS, COLUMNS, K = 512, 256, 512
CALLS = 8
BFLOAT16 = 1
NEAR = 0.75


def product(native: ModuleType) -> Callable[[], float]:
    """A function that multiplies some times on the calling thread and returns TFLOP/s."""
    w = torch.randn(COLUMNS, K).bfloat16()
    memory = torch.empty(native.linear_packed_nbytes(BFLOAT16, COLUMNS, K) + 64, dtype=torch.uint8)
    packed = memory[-memory.data_ptr() % 64 :]
    native.linear_pack_rows(
        BFLOAT16, packed.data_ptr(), COLUMNS, K, 0, COLUMNS, BFLOAT16, w.data_ptr(), K
    )
    x, y = torch.randn(ROWS, K).bfloat16(), torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16)

    def rate() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            native.linear(
                *(BFLOAT16, packed.data_ptr(), COLUMNS, K, ROWS),
                *(BFLOAT16, x.data_ptr(), K, 0, BFLOAT16, y.data_ptr(), COLUMNS),
            )
        return CALLS * 2 * ROWS * COLUMNS * K / (time.perf_counter() - start) / 1e12

    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(1)
    rate = product(native)
    rates: dict[int, list[float]] = {core: [] for core in sorted(os.sched_getaffinity(0))}
    end = time.perf_counter() + arguments.seconds
    while time.perf_counter() < end:
        for core, found in rates.items():
            os.sched_setaffinity(0, {core})
            found.append(rate())
    near = NEAR * max(max(found) for found in rates.values())
    often = {core: sum(r >= near for r in found) / len(found) for core, found in rates.items()}
    for core, found in rates.items():
        print(
            f"core {core}: median {statistics.median(found):.2f}, best {max(found):.2f} TFLOP/s, "
            f"near the best {often[core]:.0%} of the time"
        )
    best = sorted(often, key=lambda core: (-often[core], -statistics.median(rates[core])))[:2]
    print(",".join(map(str, sorted(best))))


if __name__ == "__main__":
    main()
