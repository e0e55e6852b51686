"""Time paged attention: prefill in TFLOP/s, decode in GB/s of keys and values.

Run by hand: `python benchmarks/native/attention.py [--isa avx2] [--threads 2] [--gap 0]`. The read
rate of plain memory is printed beside decode, because only their ratio means something on a busy
machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from types import ModuleType

import torch

import hotshoe_native

HEADS, KV_HEADS, DIM, BLOCK = 16, 8, 128, 32
BLOCK_NUMEL = BLOCK * KV_HEADS * DIM
# name: (requests, queries of each, length of each, keys that all share)
WORK = {
    "prefill 1 x 1,024": (1, 1024, 1024, 0),
    "prefill 4 x 256": (4, 256, 256, 0),
    "chunk of 256 after 3,840": (1, 256, 4096, 0),
    "decode 1 x 4,096": (1, 1, 4096, 0),
    "decode 1 x 300": (1, 1, 300, 0),
    "decode 32 x 300": (32, 1, 300, 0),
    "decode 4 x 8,192": (4, 1, 8192, 0),
    "decode 16 x 1,056": (16, 1, 1056, 0),
    "decode 16 x 1,024 + 32": (16, 1, 1056, 1024),
}


def seconds(call: Callable[[], object], budget: float = 0.6) -> float:
    """Median duration of repeated calls."""
    call()
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def attention(
    native: ModuleType, requests: int, queries: int, length: int, shared: int, layers: int, gap: int
) -> Callable[[], None]:
    """A call that runs the kernel on each of `layers` caches, so that decode reads memory.

    `gap` elements lie between two blocks of a cache.
    """
    blocks = -(-length // BLOCK)
    tokens = requests * queries
    qkv = torch.randn(tokens, HEADS + 2 * KV_HEADS, DIM).bfloat16()
    out = torch.empty(tokens, HEADS, DIM, dtype=torch.bfloat16)
    cache = torch.randn(BLOCK_NUMEL + gap).bfloat16().repeat(layers, 2, requests * blocks, 1)
    table = torch.randperm(requests * blocks).int().view(requests, blocks)
    table[:, : shared // BLOCK] = table[0, : shared // BLOCK]
    starts = torch.arange(0, tokens + 1, queries).int()
    lengths = torch.full((requests,), length).int()

    def call() -> None:
        for keys, values in cache:
            native.paged_attention(
                *(t.data_ptr() for t in (out, qkv, keys, values, table, starts, lengths)),
                *(0, requests, HEADS, KV_HEADS, DIM, BLOCK, blocks),
                *(out.stride(0), qkv.stride(0), keys.stride(0), BLOCK * DIM, table.stride(0)),
                *(DIM**-0.5, 0, 0.0, 1),
            )

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--gap", type=int, default=BLOCK_NUMEL // 64, help="elements (default: the platform's)"
    )
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    memory = torch.zeros(2**28)
    rate = memory.nbytes / seconds(memory.sum) / 1e9
    print(f"{native.info()}; torch.sum reads {rate:.1f} GB/s")
    print(f"{'work':26}{'ms':>9}{'TFLOP/s':>9}{'GB/s':>7}")
    for name, (requests, queries, length, shared) in WORK.items():
        nbytes = requests * length * KV_HEADS * DIM * 4
        layers = 1 if queries > 1 else max(1, 2**28 // nbytes)
        call = attention(native, requests, queries, length, shared, layers, arguments.gap)
        time_s = seconds(call) / layers
        pairs = requests * queries * (2 * length - queries + 1) / 2
        rates = f"{pairs * HEADS * DIM * 4 / time_s / 1e12:9.3f}{nbytes / time_s / 1e9:7.1f}"
        print(f"{name:26}{time_s * 1e3:9.3f}{rates}")


if __name__ == "__main__":
    main()
