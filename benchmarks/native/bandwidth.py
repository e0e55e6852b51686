"""Measure how fast the threads read memory: the bound of every kernel that streams weights.

Run by hand: `python benchmarks/native/bandwidth.py [--isa avx2] [--threads 1 2] [--mib 512]`.
Prints the median and the best of repeated passes over a range larger than the caches.
"""

import argparse
import statistics
import time
from types import ModuleType

import torch

import hotshoe_native


def read_rates(native: ModuleType, memory: torch.Tensor, passes: int) -> list[float]:
    """GB/s of each pass of the module's threads over `memory`."""
    rates = []
    for _ in range(passes):
        start = time.perf_counter()
        native.read_memory(memory.data_ptr(), memory.nbytes)
        rates.append(memory.nbytes / (time.perf_counter() - start) / 1e9)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--mib", type=int, default=512, help="size of the range")
    parser.add_argument("--passes", type=int, default=9)
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    memory = torch.empty(arguments.mib * 2**20, dtype=torch.uint8)
    native.advise_huge_pages(memory.data_ptr(), memory.nbytes)
    memory.fill_(1)
    for threads in arguments.threads:
        native.set_threads(threads)
        rates = read_rates(native, memory, arguments.passes)
        print(
            f"{threads} threads: median {statistics.median(rates):.1f}, best {max(rates):.1f} GB/s"
        )


if __name__ == "__main__":
    main()
