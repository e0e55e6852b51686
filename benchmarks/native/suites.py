"""Time operations of sparse attention and of residual streams, by turns with core's references.

Run by hand: `python benchmarks/native/suites.py [--isa avx2] [--slot compress] [--rounds 5]`.
Inputs are those of the conformance kit. One thread computes, and its own time counts, as others may
share the machine. Writing a step's rows is part of a call where a slot writes.
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
from hotshoe.slots import SLOTS, CompressSpec, MlaAttentionSpec, SparseMlaSpec
from hotshoe_conformance.cases import (
    block_indexer,
    compress,
    compressed_attention,
    hyper_connection,
    sparse_mla_attention,
)
from hotshoe_conformance.cases.attention import Batch
from hotshoe_conformance.cases.base import Setup, in_dtype
from hotshoe_conformance.place import Place
from hotshoe_cpu.compressed import Compress, CompressedAttention
from hotshoe_cpu.hyper import HyperConnection
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_cpu.sparse import BlockIndexer, SparseMlaAttention

#: Four requests that decode, and one's prompt, both at 4,096 tokens.
DECODE, PROMPT = Batch(((1, 4096),) * 4), Batch(((256, 4096),))
STREAMS = hyper_connection.PUBLISHED
#: An indexer's keys of GLM-5 Next; Hy4's attention, which has logits beside chosen tokens.
POOLED = CompressSpec(128, 64, 4, False, None, "bfloat16", "bfloat16", 32)
LATENT = MlaAttentionSpec(16, 512, 128, 64, 128, "bfloat16", "bfloat16", 32, 192**-0.5)
#: Modules of cases, our operations, specifications, and the shapes of steps.
CASES: tuple[tuple[Any, Any, Any, tuple[Any, ...]], ...] = (
    *(
        (
            hyper_connection,
            HyperConnection,
            spec,
            tuple(map(hyper_connection.Streams, (1, 64, 512))),
        )
        for spec in (STREAMS, replace(STREAMS, mixes=False))
    ),
    (compress, Compress, POOLED, (DECODE, PROMPT)),
    (sparse_mla_attention, SparseMlaAttention, SparseMlaSpec(LATENT, 512, True), (DECODE, PROMPT)),
    (block_indexer, BlockIndexer, block_indexer.PUBLISHED, (DECODE, PROMPT)),
    (compressed_attention, CompressedAttention, compressed_attention.PUBLISHED, (DECODE, PROMPT)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slot", help="only this one")
    options = parser.parse_args()
    native = hotshoe_native.load(options.isa)
    native.set_threads(1)
    torch.set_num_threads(1)
    feature = FEATURE + native.info()["isa"]
    facts = replace(CpuPlatform().facts(), features=frozenset([feature]))
    source = torch.Generator().manual_seed(1)
    for cases, ours, spec, shapes in CASES:
        if options.slot not in (None, cases.SLOT):
            continue
        spec = in_dtype(spec, "bfloat16")
        theirs = resolve_lazy(SLOTS[cases.SLOT].reference)
        for shape in shapes:
            problem = cases.SUITE.problem(Setup(spec, shape), source)
            calls = [problem.prepare(op(spec, facts), Place("cpu")) for op in (ours, theirs)]
            mine, other = (1e3 * seconds for seconds in medians(calls, options.rounds))
            row = f"{mine:9.3f} ms {other:9.3f} ms {other / mine:6.1f} x"
            note = "" if getattr(spec, "mixes", True) else "not mixed"
            print(f"{cases.SLOT:22}{note:10}{row}  {shape}", flush=True)


def medians(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median of the thread's time for each call; they run by turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 1):
        for call, found in zip(calls, times, strict=True):
            begin = time.thread_time()
            call()
            found.append(time.thread_time() - begin)
    return [statistics.median(found[1:]) for found in times]


if __name__ == "__main__":
    main()
