"""Time the kernels over states by turns with core's reference: decode steps and a prompt.

Run by hand: `python benchmarks/native/states.py [--isa avx2] [--threads 2] [--only qwen]`. Shapes
are those of one layer of published models, activations bfloat16, states float32, inputs random. A
decode step meets a different layer's states in each pass, so that they come from memory. Beside
its time stands the share of the rate at which PyTorch adds to as many bytes where they lie.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

import hotshoe_native
from hotshoe.lazy import resolve_lazy
from hotshoe.slots import (
    SLOTS,
    CacheView,
    GatedDeltaSpec,
    GatedDeltaWeights,
    StateSpaceSpec,
    StateSpaceWeights,
    StepShape,
)
from hotshoe_cpu.gated_delta import GatedDelta
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_cpu.state_space import StateSpace

TYPES = ("bfloat16", "bfloat16", "float32")
QWEN = GatedDeltaSpec(32, 16, 128, 128, 4, *TYPES, 32, 1e-6)
SHAPES: Mapping[str, GatedDeltaSpec | StateSpaceSpec] = {
    "qwen3-next (32 heads of 128 x 128)": QWEN,
    "kimi-linear (32 heads of 128 x 128, decays by channel)": replace(
        QWEN, num_key_heads=32, decay="channel", gate="sigmoid"
    ),
    "falcon-h1 0.5B (24 heads of 64 x 128)": StateSpaceSpec(24, 64, 128, 1, 4, *TYPES, 32),
    "bamba 9B (128 heads of 64 x 128)": StateSpaceSpec(
        128, 64, 128, 1, 4, *TYPES, 32, norm="after", norm_eps=1e-5
    ),
}
DECODING, PROMPT = (1, 8, 32), 1024
#: States that no cache keeps from one pass to the next.
SPREAD_BYTES = 512 << 20


def state_shape(spec: Any) -> tuple[int, int, int]:
    """Return the shape of one sequence's state."""
    if isinstance(spec, GatedDeltaSpec):
        return spec.num_heads, spec.value_dim, spec.key_dim
    return spec.num_heads, spec.head_dim, spec.state_size


def weights_of(spec: Any) -> Any:
    """Draw a layer's weights."""
    conv = (torch.randn(spec.conv_size, spec.conv_width) / 2).bfloat16()
    a, bias = -torch.rand(spec.num_heads) - 0.1, torch.randn(spec.num_heads)
    if isinstance(spec, GatedDeltaSpec):
        norm = torch.ones(spec.value_dim).bfloat16()
        return GatedDeltaWeights(conv, a, torch.randn(spec.num_decays), norm)
    norm = None if spec.norm == "none" else torch.ones(spec.inner_size).bfloat16()
    return StateSpaceWeights(conv, torch.zeros(spec.conv_size).bfloat16(), a, bias, bias, norm)


def calls_of(spec: Any, op: Any, count: int, tokens: int) -> list[Callable[[], object]]:
    """Prepare steps of `count` sequences with so many tokens each, over several layers' states."""
    shape = state_shape(spec)
    entries = count * shape[0] * shape[1] * shape[2]
    layers = 1 if tokens > 1 else max(2, SPREAD_BYTES // (4 * entries))
    starts = torch.arange(count + 1).int() * tokens
    lens = torch.full((count,), tokens + 1 if tokens == 1 else tokens).int()
    host = ([tokens] * count, lens.tolist())
    step = StepShape(count, starts, lens, tokens, int(lens.max()), host)
    view = CacheView(torch.arange(count).int()[:, None], torch.zeros(count * tokens).int())
    prepared, weights = op.prepare(step, view), weights_of(spec)
    projected = torch.randn(count * tokens, sum(spec.sections)).bfloat16()
    caches = [
        (
            torch.randn(count, spec.conv_width - 1, spec.conv_size).bfloat16(),
            torch.randn(count, *shape),
        )
        for _ in range(layers)
    ]
    return [lambda c=cache: op(projected, c, prepared, weights) for cache in caches]


def timed(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """Return the seconds of each call, over and over for as long."""
    times: list[float] = []
    while sum(times) < seconds:
        for call in calls:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
            if sum(times) > seconds and len(times) > 2:
                break
    return times


def update_rate(threads: int) -> float:
    """Return the bytes a second that are read and written where they lie."""
    torch.set_num_threads(threads)
    memory = torch.zeros(SPREAD_BYTES // 4)
    memory.add_(1.0)
    return 2 * memory.nbytes / statistics.median(timed([lambda: memory.add_(1.0)], 1.0))


def report(name: str, spec: Any, facts: Any, threads: int) -> None:
    """Print the medians of both, measured by turns, for each batch."""
    slot = "gated_delta" if isinstance(spec, GatedDeltaSpec) else "state_space"
    ours = (GatedDelta if slot == "gated_delta" else StateSpace)(spec, facts)
    theirs = resolve_lazy(SLOTS[slot].reference)(spec, facts)
    print(f"{name}\n{'':24}{'native':>12}{'reference':>12}{'times':>8}{'tokens/s':>12}{'rate':>8}")
    for count, tokens in (*((n, 1) for n in DECODING), (1, PROMPT)):
        native, plain = (calls_of(spec, op, count, tokens) for op in (ours, theirs))
        found: tuple[list[float], list[float]] = [], []
        rates = []
        for _ in range(3):
            rates.append(update_rate(threads))
            for times, calls in zip(found, (native, plain), strict=True):
                times += timed(calls, 0.7)
        mine, other = (statistics.median(times) for times in found)
        entries = state_shape(spec)[0] * state_shape(spec)[1] * state_shape(spec)[2]
        share = 8 * count * entries / mine / statistics.median(rates)
        title = f"{count} x decode" if tokens == 1 else f"prompt of {tokens}"
        print(
            f"  {title:22}{mine * 1e6:9.0f} us{other * 1e6:9.0f} us{other / mine:8.1f}"
            f"{count * tokens / mine:12.0f}" + (f"{share:8.0%}" if tokens == 1 else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="shapes whose name contains it")
    arguments = parser.parse_args()
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(arguments.threads)
    print(native.info())
    feature = FEATURE + native.info()["isa"]
    facts = replace(CpuPlatform().facts(), features=frozenset([feature]))
    print(f"{update_rate(arguments.threads) / 1e9:.1f} GB/s read and written in place")
    for name, spec in SHAPES.items():
        if arguments.only in name:
            report(name, spec, facts, arguments.threads)


if __name__ == "__main__":
    main()
