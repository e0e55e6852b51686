"""What attention of a step with trees costs on a GPU, beside a step that decodes.

    python benchmarks/tree_attention.py [--nodes 8 64] [--contexts 1024 8192] [--requests 1 16]

Layers have 32 heads, 8 KV heads of 128 numbers, bfloat16. A call reads the cache of another layer
than the one before, so that the memory and not a cache of the device holds it. All calls of a turn
are one recording, whose time divided by their number is printed in microseconds: a token of each
request (decode), a tree of each (tree), the same tokens as a chain by the kernel of prompts
(chain), and as requests of one token (single).
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import AttentionMetadata, AttentionSpec, TreeAttentionSpec, TreeNodes
from hotshoe.types.trees import ROOT, ancestors_of
from hotshoe_triton.attention import LAYOUT, Attention
from hotshoe_triton.tree_attention import TreeAttention

SPEC = AttentionSpec(32, 8, 128, "bfloat16", "bfloat16", 16, 128**-0.5)
#: Bytes of the caches of all layers: more than a device's cache holds.
BYTES = 1 << 28
TURNS = 20


def facts_here() -> DeviceFacts:
    """Return facts of the first device."""
    properties = torch.cuda.get_device_properties(0)
    arch, units = f"sm_{properties.major}{properties.minor}", properties.multi_processor_count
    if torch.version.hip:
        arch = properties.gcnArchName.partition(":")[0]
    return DeviceFacts("", "cuda", properties.name, arch, properties.total_memory, units)


class Steps:
    """Caches of some layers, and steps over them.

    Args:
        reqs, context, nodes: Of each step: requests, tokens before the tree, nodes behind a root.
    """

    def __init__(self, reqs: int, context: int, nodes: int) -> None:
        self.count, length = nodes + 1, context + nodes + 1
        width = -(-length // SPEC.block_size)
        numel = SPEC.block_size * SPEC.num_kv_heads * SPEC.head_dim
        layers = max(2, BYTES // (4 * reqs * width * numel))
        self.caches = [
            torch.randn(2, reqs * width, numel, dtype=torch.bfloat16, device="cuda")
            for _ in range(layers)
        ]
        self._reqs, self._length = reqs, length
        self._table = torch.randperm(reqs * width, device="cuda").int().view(reqs, width)
        parents = [ROOT, *(node // 2 for node in range(nodes - 1))]
        signed = [m - (1 << 64) if m >> 63 else m for m in ancestors_of(parents)]
        lines = torch.tensor([0, *signed] * reqs, device="cuda")
        self.nodes = TreeNodes(self._ints([nodes] * reqs), lines)

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device="cuda")

    def queries(self, count: int) -> Tensor:
        """Return queries of so many tokens of each request."""
        shape = self._reqs * count, SPEC.num_heads, SPEC.head_dim
        return torch.randn(shape, dtype=torch.bfloat16, device="cuda")

    def together(self, count: int) -> AttentionMetadata:
        """Return a step in which each request has so many tokens."""
        reqs, length = self._reqs, self._length
        starts = self._ints(list(range(0, (reqs + 1) * count, count)))
        slots = self._ints([0] * reqs * count)
        return AttentionMetadata(
            reqs, starts, self._ints([length] * reqs), self._table, slots, count, length
        )

    def single(self) -> AttentionMetadata:
        """Return a step in which each token of a chain is a request."""
        tokens = self._reqs * self.count
        lengths = self._ints(list(range(self._length - self.count + 1, self._length + 1)))
        table = self._table.repeat_interleave(self.count, 0)
        starts = self._ints(list(range(tokens + 1)))
        own = lengths.repeat(self._reqs)
        return AttentionMetadata(tokens, starts, own, table, own, 1, self._length)


def recorded(calls: list[Callable[[], Tensor]]) -> torch.cuda.CUDAGraph:
    """Record calls behind each other, which ran before."""
    for _ in range(2):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def times(graphs: dict[str, tuple[torch.cuda.CUDAGraph, int]]) -> dict[str, float]:
    """Replay recordings by turns, and return the median microseconds of a call."""
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(TURNS):
        for name, (graph, count) in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            found[name].append(1e3 * begin.elapsed_time(end) / count)
    return {name: statistics.median(own) for name, own in found.items()}


def measure(reqs: int, context: int, nodes: int) -> dict[str, float]:
    """Return the microseconds of each kind of step."""
    steps, facts = Steps(reqs, context, nodes), facts_here()
    trees, queries = TreeAttentionSpec(SPEC, LAYOUT), steps.queries(steps.count)
    graphs = {}
    for name, step, q in (
        ("decode", steps.together(1), steps.queries(1)),
        ("tree", steps.together(steps.count), queries),
        ("chain", steps.together(steps.count), queries),
        ("single", steps.single(), queries),
    ):
        calls: list[Callable[[], Tensor]] = []
        for cache in steps.caches:
            if name == "tree":
                branch = TreeAttention(trees, facts)
                calls.append(lambda o=branch, c=cache, s=step, q=q: o(q, c, s, steps.nodes, None))
            else:
                attend = Attention(SPEC, facts)
                calls.append(lambda o=attend, c=cache, s=step, q=q: o(q, c, s, None))
        graphs[name] = recorded(calls), len(calls)
    return times(graphs)


def main() -> None:
    """Measure, and print a row for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16])
    args = parser.parse_args()
    print(torch.cuda.get_device_name())
    print("| requests | context | nodes | decode | tree | chain | single |\n" + "|---" * 7 + "|")
    for case in itertools.product(args.requests, args.contexts, args.nodes):
        found = [f"{time:.1f}" for time in measure(*case).values()]
        print("|", " | ".join([*map(str, case), *found]), "|", flush=True)


if __name__ == "__main__":
    main()
