"""Candidates of slot `graph`: recorded steps that share one memory pool.

PyTorch has the same recording for every vendor, in a module of each: `torch.cuda` drives AMD's
devices too.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GraphSpec, Verdict, accept

SCORE = 100


def supports(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    """Serve every device that `torch.cuda` drives."""
    return accept(SCORE)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Keep the collector away: what it frees of an earlier engine would break a recording."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Graph:
    """See `hotshoe.slots.GraphOp`."""

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        self._pool: tuple[int, int] | None = None

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        # Once as it is: kernels are compiled and libraries take their workspaces outside the graph.
        function()
        graph = torch.cuda.CUDAGraph()
        with no_garbage(), torch.cuda.graph(graph, pool=self._pool):
            output = function()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
