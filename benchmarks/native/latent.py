"""Time latent attention, dense and sparse, and the choice, by turns with core's references.

Run by hand: `python benchmarks/native/latent.py [--isa avx2] [--threads 1] [--slot indexer]`. The
indexer has DeepSeek V3.2's heads, attention 16 heads, as one of eight ranks has; inputs are random.
With one thread the calling thread's own time counts, as others may share the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import hotshoe_native
from hotshoe.lazy import resolve_lazy
from hotshoe.slots import (
    SLOTS,
    CacheView,
    IndexerSpec,
    MlaAttentionSpec,
    SparseMlaSpec,
    StepShape,
)
from hotshoe.slots.reference.rows import packed
from hotshoe.types.rows import RowForm
from hotshoe_cpu.latent import MlaAttention
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_cpu.sparse import Indexer, SparseMlaAttention

TOP_K, BLOCK = 2048, 32
#: Requests, tokens of each in the step, and in all.
BATCHES = {"4 x decode at 4096": (4, 1, 4096), "prompt of 64 at 4096": (1, 64, 4096)}
DENSE = BATCHES | {"decode at 4096": (1, 1, 4096), "prompt of 1024": (1, 1024, 1024)}
#: Types of the model, and of its cache.
TYPES = (
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float8_e4m3fn"),
    ("bfloat16", "int8"),
    ("float32", "float32"),
)


def step_of(count: int, tokens: int, length: int) -> tuple[StepShape, CacheView]:
    """Make a step; its slots are read by nobody."""
    starts = torch.arange(count + 1).int() * tokens
    lens = torch.full((count,), length).int()
    table = torch.randperm(count * length // BLOCK).view(count, -1).int()
    return StepShape(count, starts, lens, tokens, length), CacheView(table, starts)


def cache_of(form: RowForm, batch: tuple[int, int, int]) -> Tensor:
    """Make rows of random numbers."""
    values = torch.randn(batch[0] * batch[2], form.channels)
    return packed(form, values).view(-1, BLOCK, form.width)


def indexing(op: Any, spec: IndexerSpec, batch: tuple[int, int, int]) -> Callable[[], object]:
    """Prepare a choice."""
    kind, rows = getattr(torch, spec.dtype), batch[0] * batch[1]
    prepared, cache = op.prepare(*step_of(*batch)), cache_of(spec.row, batch)
    q = torch.randn(rows, spec.num_heads, spec.head_dim).to(kind)
    weights = torch.randn(rows, spec.num_heads)
    return lambda: op(q, weights, cache, prepared)


def attending(op: Any, spec: Any, batch: tuple[int, int, int]) -> Callable[[], object]:
    """Prepare attention to all rows, or to random choices."""
    own = spec.attention if isinstance(spec, SparseMlaSpec) else spec
    kind, rows = getattr(torch, own.dtype), batch[0] * batch[1]
    prepared, cache = op.prepare(*step_of(*batch)), cache_of(own.row, batch)
    q = torch.randn(rows, own.num_heads, own.nope_dim + own.rope_dim).to(kind)
    op.load(torch.randn(own.num_heads, own.nope_dim + own.v_dim, own.latent_dim).to(kind) / 20)
    if own is spec:
        return lambda: op(q, cache, prepared)
    first = batch[2] - batch[1] + 1
    chosen = torch.stack([torch.randperm(first)[:TOP_K] for _ in range(rows)]).int()
    return lambda: op(q, cache, prepared, chosen)


def cases(dtype: str, kv: str) -> dict[str, tuple[Any, Any, Any, dict[str, tuple[int, int, int]]]]:
    """Return for each slot its specification, our operation, what prepares it, and batches."""
    dense = MlaAttentionSpec(16, 512, 128, 64, 128, dtype, kv, BLOCK, 192**-0.5)
    index, sparse = IndexerSpec(64, 128, 64, TOP_K, dtype, kv, BLOCK), SparseMlaSpec(dense, TOP_K)
    return {
        "mla_attention": (dense, MlaAttention, attending, DENSE),
        "indexer": (index, Indexer, indexing, BATCHES),
        "sparse_mla_attention": (sparse, SparseMlaAttention, attending, BATCHES),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slot", help="only this one")
    options = parser.parse_args()
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    native = hotshoe_native.load(options.isa)
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(native.info())
    feature = FEATURE + native.info()["isa"]
    facts = replace(CpuPlatform().facts(), features=frozenset([feature]))
    for dtype, kv in TYPES:
        for slot, (spec, ours, prepare, batches) in cases(dtype, kv).items():
            if options.slot not in (None, slot):
                continue
            theirs = resolve_lazy(SLOTS[slot].reference)
            for name, batch in batches.items():
                calls = [prepare(op(spec, facts), spec, batch) for op in (ours, theirs)]
                mine, other = (1e3 * t for t in medians(calls, clock, options.rounds))
                row = f"{mine:8.1f} ms {other:8.1f} ms {other / mine:6.1f} x"
                print(f"{slot:22}{dtype:10}{kv:15}{name:22}{row}", flush=True)


def medians(
    calls: Sequence[Callable[[], object]], clock: Callable[[], float], rounds: int
) -> list[float]:
    """Return the median time of each call; they run by turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 1):
        for call, found in zip(calls, times, strict=True):
            begin = clock()
            call()
            found.append(clock() - begin)
    return [statistics.median(found[1:]) for found in times]


if __name__ == "__main__":
    main()
