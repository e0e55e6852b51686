"""Time paged attention: prefill in TFLOP/s, decode in GB/s of keys and values.

Run by hand: `python benchmarks/native/attention.py [--isa avx2] [--threads 2] [--gap 0]`. The read
rate of plain memory is printed beside decode, because only their ratio means something on a busy
machine. Caches of 8 bits are timed by turns with bfloat16, and their shares of its time printed.
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
    "decode 1 x 16,384": (1, 1, 16384, 0),
    "decode 1 x 300": (1, 1, 300, 0),
    "decode 32 x 300": (32, 1, 300, 0),
    "decode 4 x 8,192": (4, 1, 8192, 0),
    "decode 16 x 1,056": (16, 1, 1056, 0),
    "decode 16 x 1,024 + 32": (16, 1, 1056, 1024),
}


# Types of the cache: their codes, and whether tokens have scales.
BFLOAT16 = (1, False)
NARROW = {"int8": (3, True), "fp8": (4, True), "fp8_e5m2": (5, False)}


def seconds(*calls: Callable[[], object], budget: float = 0.6) -> list[float]:
    """Median durations of calls that are repeated by turns."""
    times: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + budget * len(calls)
    while time.perf_counter() < end or len(times[0]) < 6:
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in times]


def attention(
    native: ModuleType, work: tuple[int, int, int, int], layers: int, gap: int, kv: tuple[int, bool]
) -> Callable[[], None]:
    """A call that runs the kernel on each of `layers` caches, so that decode reads memory.

    `gap` elements lie between two blocks of a cache.
    """
    requests, queries, length, shared = work
    code, token_scales = kv
    narrow = code != 1
    kernel = native.paged_attention_8bit if narrow else native.paged_attention
    stored = (code, 0, token_scales) * narrow
    blocks = -(-length // BLOCK)
    tokens = requests * queries
    qkv = torch.randn(tokens, HEADS + 2 * KV_HEADS, DIM).bfloat16()
    out = torch.empty(tokens, HEADS, DIM, dtype=torch.bfloat16)
    block = torch.randn(BLOCK_NUMEL + gap).bfloat16()
    if narrow:
        scales = torch.full((BLOCK * KV_HEADS,), 0.01).view(torch.uint8)
        block = torch.cat((torch.randint(120, (BLOCK_NUMEL + gap,)).byte(), scales))
    cache = block.repeat(layers, 2, requests * blocks, 1)
    table = torch.randperm(requests * blocks).int().view(requests, blocks)
    table[:, : shared // BLOCK] = table[0, : shared // BLOCK]
    starts = torch.arange(0, tokens + 1, queries).int()
    lengths = torch.full((requests,), length).int()

    def call() -> None:
        for keys, values in cache:
            kernel(
                *(t.data_ptr() for t in (out, qkv, keys, values, table, starts, lengths)),
                *(0, 0, requests, HEADS, KV_HEADS, DIM, BLOCK, blocks),
                *(out.stride(0), qkv.stride(0), keys.stride(0), BLOCK * DIM, table.stride(0)),
                *(DIM**-0.5, 0, 0.0, 1, *stored),
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
    rate = memory.nbytes / seconds(memory.sum)[0] / 1e9
    print(f"{native.info()}; torch.sum reads {rate:.1f} GB/s")
    print(f"{'work':26}{'ms':>9}{'TFLOP/s':>9}{'GB/s':>7}" + "".join(f"{n:>10}" for n in NARROW))
    for name, work in WORK.items():
        requests, queries, length, _ = work
        nbytes = requests * length * KV_HEADS * DIM * 4
        layers = 1 if queries > 1 else max(1, 2**28 // nbytes)
        made = [
            attention(native, work, layers, arguments.gap, kv)
            for kv in (BFLOAT16, *NARROW.values())
        ]
        time_s, *others = (time / layers for time in seconds(*made))
        pairs = requests * queries * (2 * length - queries + 1) / 2
        rates = f"{pairs * HEADS * DIM * 4 / time_s / 1e12:9.3f}{nbytes / time_s / 1e9:7.1f}"
        shares = "".join(f"{other / time_s:10.2f}" for other in others)
        print(f"{name:26}{time_s * 1e3:9.3f}{rates}{shares}")


if __name__ == "__main__":
    main()
