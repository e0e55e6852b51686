"""Time the small kernels: rotation and cache write, norms, activation, embedding, sampling.

Run by hand: `python benchmarks/native/operations.py [--isa avx2] [--threads 2]`. Sizes are those
of a 0.6-billion-parameter model; sampling draws normal logits, fresh for every call, because a
processor learns the branches of a repeated row.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from types import ModuleType

import torch

import hotshoe_native

HIDDEN, INNER, HEADS, KV_HEADS, DIM, BLOCK = 1024, 3072, 16, 8, 128, 32
BF16 = 1
# rows, vocabulary, temperature, top_k, top_p, min_p, spread of the logits
SAMPLES = [
    (32, 32000, 0.0, 0, 1.0, 0.0, 3.0),
    (32, 32000, 1.0, 0, 1.0, 0.0, 3.0),
    (32, 32000, 1.0, 50, 0.9, 0.0, 3.0),
    (32, 32000, 1.0, 0, 0.9, 0.0, 3.0),
    (32, 32000, 1.0, 0, 0.9, 0.0, 0.1),
    (1, 151936, 1.0, 50, 1.0, 0.0, 3.0),
    (1, 151936, 1.0, 0, 0.9, 0.0, 3.0),
    (1, 151936, 1.0, 0, 0.9, 0.0, 0.1),
]


def report(name: str, calls: list[Callable[[], object]]) -> None:
    """Print the median of one pass over prepared calls."""
    calls[0]()
    times = []
    for call in calls:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    print(f"{name:52}{statistics.median(times) * 1e6:10.1f} us")


def operations(native: ModuleType, tokens: int) -> dict[str, Callable[[], object]]:
    """Prepare the kernels of one layer for so many tokens."""
    qkv = torch.randn(tokens, (HEADS + 2 * KV_HEADS) * DIM).bfloat16()
    x, residual = torch.randn(2, tokens, HIDDEN).bfloat16()
    wide = torch.randn(tokens, 2 * INNER).bfloat16()
    out = torch.empty(tokens, INNER).bfloat16()
    norm = torch.ones(DIM).bfloat16()
    weight, table = torch.ones(HIDDEN).bfloat16(), torch.randn(32000, HIDDEN).bfloat16()
    ids = torch.randint(0, 32000, (tokens,)).int()
    places = torch.arange(tokens).int()
    cos_sin = torch.rand(tokens, DIM)
    cache = torch.zeros(2, -(-tokens // BLOCK), BLOCK * KV_HEADS * DIM).bfloat16()
    norm_sizes = (tokens, HIDDEN, HIDDEN, HIDDEN)

    def at(*tensors: torch.Tensor) -> tuple[int, ...]:
        return tuple(t.data_ptr() for t in tensors)

    return {
        "rms_norm": lambda: native.rms_norm(*at(out, x, weight), *norm_sizes, 1e-6, 0.0, BF16),
        "add_rms_norm": lambda: native.add_rms_norm(
            *at(out, x, residual, weight), *norm_sizes, HIDDEN, 1e-6, 0.0, 1.0, BF16
        ),
        "gated_activation silu": lambda: native.gated_activation(
            *at(out, wide), tokens, INNER, INNER, 2 * INNER, 0, BF16
        ),
        "embedding": lambda: native.embedding(
            *at(out, table, ids), tokens, HIDDEN, len(table), HIDDEN, HIDDEN, 1.0, False, BF16
        ),
        "rotary_and_cache with norm": lambda: native.rotary_and_cache(
            *at(qkv, places, cos_sin, cache[0], cache[1], places, norm, norm),
            *(tokens, HEADS, KV_HEADS, DIM, DIM, BLOCK, qkv.stride(0), cache.stride(1)),
            *(BLOCK * DIM, 1e-6, 0.0, False, BF16),
        ),
    }


def sample_calls(
    native: ModuleType, parameters: tuple[float, ...], repeats: int = 9
) -> list[Callable[[], object]]:
    """Prepare calls over fresh logits."""
    rows, vocab, temperature, top_k, top_p, min_p, spread = parameters
    rows, vocab = int(rows), int(vocab)
    full = [
        torch.full((rows,), value, dtype=dtype)
        for value, dtype in (
            (temperature, torch.float32),
            (int(top_k), torch.int32),
            (top_p, torch.float32),
            (min_p, torch.float32),
        )
    ]
    uniform, tokens = torch.rand(rows, dtype=torch.float64), torch.empty(rows, dtype=torch.int64)

    def prepare() -> Callable[[], object]:
        logits = torch.randn(rows, vocab) * spread
        tensors = (tokens, logits, *full, uniform)
        return lambda: native.sample(*(t.data_ptr() for t in tensors), rows, vocab, vocab, 0)

    return [prepare() for _ in range(repeats)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(arguments.threads)
    print(native.info())
    for tokens in (1, 32, 1024):
        for name, call in operations(native, tokens).items():
            report(f"{name}, {tokens} tokens", [call] * 200)
    for parameters in SAMPLES:
        rows, vocab, temperature, top_k, top_p, _, spread = parameters
        name = f"sample {rows} x {vocab}, T {temperature}, k {top_k}, p {top_p}, spread {spread}"
        report(name, sample_calls(native, parameters))


if __name__ == "__main__":
    main()
