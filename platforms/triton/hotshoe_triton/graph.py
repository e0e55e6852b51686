"""Candidates of slot `graph`: recorded steps that share one memory pool.

PyTorch has the same recording for every vendor, in a module of each: `torch.cuda` drives AMD's
devices too.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GraphSpec, Verdict, accept, refuse

SCORE = 100


def supports(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    """Serve every device that `torch.cuda` drives."""
    if spec.pieces:
        return refuse("recording in pieces is not proved on this hardware yet")
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


@contextmanager
def ordinary_tensors(recording: AbstractContextManager[None]) -> Iterator[None]:
    """Record, but make what PyTorch keeps for all recordings of a process outside inference mode.

    The random generator's state is shared by them, and what was made inside cannot be written
    outside, where the next recording may be made or repeated.
    """
    inference = torch.is_inference_mode_enabled()
    with torch.inference_mode(False), recording, torch.inference_mode(inference):
        yield


@cache
def recording_stream(device: int) -> torch.cuda.Stream:
    """Return the one stream on which a device's steps are recorded.

    Not one for each engine: libraries keep a workspace for every stream that they ever met.
    """
    return torch.cuda.Stream(device)


class Graph:
    """See `hotshoe.slots.GraphOp`."""

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        self._pool: tuple[int, int] | None = None

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        graph = torch.cuda.CUDAGraph()
        stream = recording_stream(torch.cuda.current_device())
        # Other threads' engines may take memory meanwhile: only this one's calls are watched.
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
        )
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # left even if a recording fails, which leaves it open
            # Once as it is: kernels are compiled and libraries take their workspaces outside.
            function()
            with no_garbage(), ordinary_tensors(recording):
                output = function()
        self._pool = graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay
