"""Time sparse attention by turns with core's references: the choice, and attention to it.

Run by hand: `python benchmarks/native/sparse.py [--isa avx2] [--threads 1]`. The indexer's heads
are DeepSeek V3.2's, of attention one of eight ranks has 16 heads; inputs are random. With one
thread the calling thread's own time counts, as others may share the machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

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
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_cpu.sparse import Indexer, SparseMlaAttention

TOP_K, BLOCK = 2048, 32
#: Requests, tokens of each in the step, and in all.
BATCHES = {"4 x decode at 4096": (4, 1, 4096), "prompt of 64 at 4096": (1, 64, 4096)}


def step_of(count: int, tokens: int, length: int) -> tuple[StepShape, CacheView]:
    """Make a step; its slots are read by nobody."""
    starts = torch.arange(count + 1).int() * tokens
    lens = torch.full((count,), length).int()
    table = torch.randperm(count * length // BLOCK).view(count, -1).int()
    return StepShape(count, starts, lens, tokens, length), CacheView(table, starts)


def indexing(op: Any, spec: IndexerSpec, batch: tuple[int, int, int]) -> Callable[[], object]:
    """Prepare a choice."""
    kind, rows = getattr(torch, spec.dtype), batch[0] * batch[1]
    prepared = op.prepare(*step_of(*batch))
    cache = torch.randn(batch[0] * batch[2] // BLOCK, BLOCK, spec.head_dim).to(kind)
    q = torch.randn(rows, spec.num_heads, spec.head_dim).to(kind)
    weights = torch.randn(rows, spec.num_heads)
    return lambda: op(q, weights, cache, prepared)


def attending(op: Any, spec: SparseMlaSpec, batch: tuple[int, int, int]) -> Callable[[], object]:
    """Prepare attention to random choices."""
    own, rows = spec.attention, batch[0] * batch[1]
    kind = getattr(torch, own.dtype)
    prepared = op.prepare(*step_of(*batch))
    cache = torch.randn(batch[0] * batch[2] // BLOCK, BLOCK, own.row.channels).to(kind)
    q = torch.randn(rows, own.num_heads, own.nope_dim + own.rope_dim).to(kind)
    op.load(torch.randn(own.num_heads, own.nope_dim + own.v_dim, own.latent_dim).to(kind) / 20)
    first = batch[2] - batch[1] + 1
    chosen = torch.stack([torch.randperm(first)[:TOP_K] for _ in range(rows)]).int()
    return lambda: op(q, cache, prepared, chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    native = hotshoe_native.load(options.isa)
    native.set_threads(options.threads)
    torch.set_num_threads(options.threads)
    print(native.info())
    feature = FEATURE + native.info()["isa"]
    facts = replace(CpuPlatform().facts(), features=frozenset([feature]))
    for dtype in ("bfloat16", "float32"):
        latent = MlaAttentionSpec(16, 512, 128, 64, 128, dtype, dtype, BLOCK, 192**-0.5)
        cases: tuple[tuple[str, Any, Any, Any], ...] = (
            ("indexer", IndexerSpec(64, 128, 64, TOP_K, dtype, dtype, BLOCK), Indexer, indexing),
            ("sparse_mla_attention", SparseMlaSpec(latent, TOP_K), SparseMlaAttention, attending),
        )
        for slot, spec, ours, prepare in cases:
            theirs = resolve_lazy(SLOTS[slot].reference)
            for name, batch in BATCHES.items():
                calls = [prepare(op(spec, facts), spec, batch) for op in (ours, theirs)]
                times: tuple[list[float], list[float]] = ([], [])
                for _ in range(options.rounds + 1):
                    for call, found in zip(calls, times, strict=True):
                        begin = clock()
                        call()
                        found.append(clock() - begin)
                mine, other = (1e3 * statistics.median(found[1:]) for found in times)
                row = f"{mine:8.1f} ms {other:8.1f} ms {other / mine:6.1f} x"
                print(f"{slot:22}{dtype:10}{name:22}{row}", flush=True)


if __name__ == "__main__":
    main()
