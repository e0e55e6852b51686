"""Time the packed linear kernels beside `torch.nn.functional.linear` in one run.

Run by hand: `python benchmarks/native/linear.py [--dtype bfloat16 float32 int8] [--isa avx2]
[--threads 2]`. Rates of 1 row are GB/s of weights read, of more rows TFLOP/s. Weights rotate
through copies that no cache holds. Each line gives the median and the best of its calls: on a
busy machine only the best says something about a kernel.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from types import ModuleType

import torch

import hotshoe_native

SHAPES = [(6144, 1024), (1024, 3072), (4096, 1024), (1024, 2048)]
ROWS = [1, 4, 16, 32, 64, 256, 1024]
CODES = {"float32": 0, "bfloat16": 1, "int8": 3}
ROTATION_BYTES = 200e6


def seconds(call: Callable[[], object], budget: float) -> list[float]:
    """Durations of repeated calls."""
    call()
    times, end = [], time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def packed(native: ModuleType, w: torch.Tensor, dtype: str) -> torch.Tensor:
    """The weight in the kernels' layout."""
    n, k = w.shape
    memory = torch.empty(native.linear_packed_nbytes(CODES[dtype], n, k), dtype=torch.uint8)
    native.advise_huge_pages(memory.data_ptr(), memory.nbytes)
    source = CODES["float32" if w.dtype == torch.float32 else "bfloat16"]
    native.linear_pack_rows(
        CODES[dtype], memory.data_ptr(), n, k, 0, n, source, w.data_ptr(), w.stride(0)
    )
    return memory


def compare(
    native: ModuleType, dtype: str, n: int, k: int, budget: float
) -> list[tuple[int, list[float], list[float]]]:
    """Rows and durations of ours and of torch's (in bfloat16 for int8)."""
    x_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
    code = CODES["float32" if dtype == "float32" else "bfloat16"]
    bytes_each = n * k * torch.empty((), dtype=getattr(torch, dtype)).element_size()
    weights = [torch.randn(n, k).to(x_dtype) for _ in range(2 + int(ROTATION_BYTES / bytes_each))]
    theirs, ours = (
        itertools.cycle(weights),
        itertools.cycle([packed(native, w, dtype) for w in weights]),
    )
    results = []
    for m in ROWS:
        x, y = torch.randn(m, k).to(x_dtype), torch.empty(m, n, dtype=x_dtype)

        def native_call(m: int = m, x: torch.Tensor = x, y: torch.Tensor = y) -> None:
            weight = next(ours)
            native.linear(
                *(CODES[dtype], weight.data_ptr(), n, k, m),
                *(code, x.data_ptr(), k, 0, code, y.data_ptr(), n),
            )

        def torch_call(x: torch.Tensor = x) -> None:
            torch.nn.functional.linear(x, next(theirs))

        results.append((m, seconds(native_call, budget), seconds(torch_call, budget)))
    return results


def rate(dtype: str, m: int, n: int, k: int, time_s: float) -> str:
    if m == 1:
        width = torch.empty((), dtype=getattr(torch, dtype)).element_size()
        return f"{n * k * width / time_s / 1e9:6.1f} GB/s   "
    return f"{2 * m * n * k / time_s / 1e12:6.3f} TFLOP/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", nargs="+", choices=list(CODES), default=list(CODES))
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each number")
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    print(native.info())
    head = "native median / best                 torch median / best"
    print(f"{'weights':9}{'[N, K]':>14}{'M':>6}  {head}")
    for dtype in arguments.dtype:
        for n, k in SHAPES:
            for m, ours, theirs in compare(native, dtype, n, k, arguments.budget):
                cells = [
                    f"{rate(name, m, n, k, statistics.median(t))} / {rate(name, m, n, k, min(t))}"
                    for name, t in ((dtype, ours), (dtype.replace("int8", "bfloat16"), theirs))
                ]
                print(f"{dtype:9}{f'[{n}, {k}]':>14}{m:6}  {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
