"""Time the kernels over states by turns with core's reference: decode steps and a prompt.

Run by hand: `python benchmarks/native/states.py [--isa avx2] [--threads 2] [--only qwen]`. Shapes
are those of one layer of published models, activations bfloat16, states float32, inputs random. A
decode step meets a different layer's states in each pass, so that they come from memory. Beside
its time stands its share of the rate at which PyTorch adds to as many bytes where they lie.
"""

from __future__ import annotations

import argparse
import itertools
import math
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
    RgLruSpec,
    RgLruWeights,
    StateSpaceSpec,
    StateSpaceWeights,
    StepShape,
)
from hotshoe_cpu.gated_delta import GatedDelta
from hotshoe_cpu.native import FEATURE
from hotshoe_cpu.platform import CpuPlatform
from hotshoe_cpu.rg_lru import RgLru
from hotshoe_cpu.state_space import StateSpace

TYPES = ("bfloat16", "bfloat16", "float32")
QWEN = GatedDeltaSpec(32, 16, 128, 128, 4, *TYPES, 32, 1e-6)
SHAPES: Mapping[str, GatedDeltaSpec | RgLruSpec | StateSpaceSpec] = {
    "qwen3-next (32 heads of 128 x 128)": QWEN,
    "kimi-linear (32 heads of 128 x 128, decays by channel)": replace(
        QWEN, num_key_heads=32, decay="channel", gate="sigmoid"
    ),
    "falcon-h1 0.5B (24 heads of 64 x 128)": StateSpaceSpec(24, 64, 128, 1, 4, *TYPES, 32),
    "bamba 9B (128 heads of 64 x 128)": StateSpaceSpec(
        128, 64, 128, 1, 4, *TYPES, 32, norm="after", norm_eps=1e-5
    ),
    "recurrentgemma 2B (10 heads of 256)": RgLruSpec(2560, 10, 4, *TYPES, 32),
}
#: By the kind of a specification.
OPERATIONS = {
    GatedDeltaSpec: ("gated_delta", GatedDelta),
    RgLruSpec: ("rg_lru", RgLru),
    StateSpaceSpec: ("state_space", StateSpace),
}
DECODING, PROMPT = (1, 8, 32), 1024
#: By whether only the calling thread's own time counts.
CLOCKS = {False: time.perf_counter, True: time.thread_time}
#: States that no cache keeps from one pass to the next.
SPREAD_BYTES = 256 << 20


def state_shape(spec: Any) -> tuple[int, int, int]:
    """Return the shape of one sequence's state."""
    if isinstance(spec, GatedDeltaSpec):
        return spec.num_heads, spec.value_dim, spec.key_dim
    if isinstance(spec, RgLruSpec):
        return 1, spec.inner_size, 1
    return spec.num_heads, spec.head_dim, spec.state_size


def weights_of(spec: Any) -> Any:
    """Draw a layer's weights."""
    conv = (torch.randn(spec.conv_size, spec.conv_width) / 2).bfloat16()
    if isinstance(spec, RgLruSpec):
        size, inner = spec.head_dim, spec.inner_size
        gates = torch.randn(spec.num_heads, size, 2 * size) / math.sqrt(size)
        bias, rate = torch.randn(2, inner), -torch.rand(inner) - 0.1
        return RgLruWeights(conv, torch.zeros(inner).bfloat16(), gates, bias, rate)
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
    prepared = op.prepare(step, view)
    # As many layers as the largest matrices between projections keep from caches, too.
    matrix = spec.inner_size * 2 * spec.head_dim if isinstance(spec, RgLruSpec) else SPREAD_BYTES
    models = [weights_of(spec) for _ in range(min(layers, max(1, SPREAD_BYTES // (4 * matrix))))]
    projected = torch.randn(count * tokens, sum(spec.sections)).bfloat16()
    conv = torch.randn(layers, count, spec.conv_width - 1, spec.conv_size).bfloat16()
    states = torch.randn(layers, count, *shape)  # of one piece, so that pages may be large
    return [
        lambda c=c, w=w: op(projected, c, prepared, w)
        for *c, w in zip(conv, states, itertools.cycle(models), strict=False)
    ]


def timed(
    calls: list[Callable[[], object]], seconds: float, clock: Callable[[], float]
) -> list[float]:
    """Return the seconds of each call, over and over for as long, three calls at least."""
    times: list[float] = []
    for call in itertools.cycle(calls):
        start = clock()
        call()
        times.append(clock() - start)
        if sum(times) > seconds and len(times) > 2:
            return times
    raise AssertionError("no calls")


def update_times(threads: int, clock: Callable[[], float]) -> list[float]:
    """Return seconds in which a byte is read and written where it lies."""
    torch.set_num_threads(threads)
    memory = torch.zeros(SPREAD_BYTES // 4)
    memory.add_(1.0)
    times = timed([lambda: memory.add_(1.0)], 0.5, clock)
    torch.set_num_threads(1)  # as the platform sets it for references
    return [seconds / memory.nbytes for seconds in times]


def report(name: str, spec: Any, facts: Any, options: argparse.Namespace) -> None:
    """Print median and best of both, measured by turns, for each batch."""
    clock = CLOCKS[options.processor_time]
    slot, make = OPERATIONS[type(spec)]
    ours = make(spec, facts)
    theirs = resolve_lazy(SLOTS[slot].reference)(spec, facts)
    heads = ("native", "(best)", "reference", "(best)", "times", "tokens/s", "rate", "(best)")
    print(name, "".join(f"{head:>11}" for head in heads), sep="\n" + " " * 18)
    for count, tokens in (*((n, 1) for n in DECODING), (1, PROMPT)):
        native, plain = (calls_of(spec, op, count, tokens) for op in (ours, theirs))
        found: tuple[list[float], list[float], list[float]] = ([], [], [])
        for _ in range(3):
            found[0].extend(update_times(options.threads, clock))
            found[1].extend(timed(native, options.seconds, clock))
            found[2].extend(timed(plain, options.seconds, clock))
        update, mine, other = ((statistics.median(times), min(times)) for times in found)
        state = 4 * count * math.prod(state_shape(spec))
        shares = [state * one / took for one, took in zip(update, mine, strict=True)]
        times = "".join(f"{t * 1e6:8.0f} us" for t in (*mine, *other))
        title = f"{count} x decode" if tokens == 1 else f"prompt of {tokens}"
        rates = "".join(f"{share:11.0%}" for share in shares) if tokens == 1 else ""
        ratio, rate = other[0] / mine[0], count * tokens / mine[0]
        print(f"{title:18}{times}{ratio:11.1f}{rate:11.0f}{rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", help="instruction set (default: the best one)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, of three each")
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the calling thread's time alone: where others share the machine, one thread",
    )
    parser.add_argument("--only", default="", help="shapes whose name contains it")
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != 1:
        parser.error("--processor-time sees one thread: add --threads 1")
    native = hotshoe_native.load(arguments.isa)
    native.set_threads(arguments.threads)
    print(native.info())
    feature = FEATURE + native.info()["isa"]
    facts = replace(CpuPlatform().facts(), features=frozenset([feature]))
    update = statistics.median(update_times(arguments.threads, CLOCKS[arguments.processor_time]))
    print(f"{2 / update / 1e9:.1f} GB/s read and written in place")
    for name, spec in SHAPES.items():
        if arguments.only in name:
            report(name, spec, facts, arguments)


if __name__ == "__main__":
    main()
