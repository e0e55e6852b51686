"""Candidates of slot `graph`: steps recorded, whole or in pieces, that share one memory pool.

PyTorch has the same recording for every vendor, in a module of each: `torch.cuda` drives AMD's
devices too.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache

import torch
from torch import Tensor

from hotshoe.platform import DeviceFacts
from hotshoe.slots import Between, GraphSpec, Verdict, accept

SCORE = 100


def supports(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    """Serve every device that `torch.cuda` drives."""
    return accept(SCORE)


@contextmanager
def no_garbage() -> Iterator[None]:
    """Keep the collector away: what it frees of an earlier engine would break a recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def recording_stream(device: int) -> torch.cuda.Stream:
    """Return the one stream on which a device's steps are recorded.

    Not one for each engine: libraries keep a workspace for every stream that they ever met.
    """
    return torch.cuda.Stream(device)


class Memory:
    """Where bytes lie, as CUDA's array interface says it, version 3.

    Args:
        address, nbytes: Where, and how many.
        owner: Lives as long as a tensor made of this.
    """

    def __init__(self, address: int, nbytes: int, owner: object = None) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def lent(tensor: Tensor) -> Tensor:
    """Return the same tensor, but one that does not keep its memory from the next recordings.

    A result has to last until the next repetition only. If each kept its own, recordings would
    take as much as all their logits together.
    """
    if not tensor.is_cuda or not tensor.numel():
        return tensor
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * step for size, step in steps)
    memory = Memory(tensor.data_ptr(), span * tensor.itemsize)
    flat = torch.as_tensor(memory, device=tensor.device).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


class Graph:
    """See `hotshoe.slots.GraphOp`."""

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        # Its pool is that of all others, and lasts while a recording in it does.
        self._first: torch.cuda.CUDAGraph | None = None

    def rest(self) -> None:
        """See `hotshoe.slots.RestingGraphOp`."""
        self._first = None

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return self.record_pieces(lambda between: function())

    def record_pieces(self, function: Callable[[Between], Tensor]) -> Callable[[], Tensor]:
        stream, before = recording_stream(torch.cuda.current_device()), torch.cuda.current_stream()
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            # Once as it is: kernels are compiled and libraries take their workspaces outside.
            function(lambda call: call())
            torch.cuda.empty_cache()
            with no_garbage():
                parts, output = self._recorded(function)
        # Sums of ranks must follow each other: two at a time take each other's numbers.
        before.wait_stream(stream)

        def replay() -> Tensor:
            for part in parts:
                part()
            return output

        return replay

    def _recorded(
        self, function: Callable[[Between], Tensor]
    ) -> tuple[list[Callable[[], None]], Tensor]:
        parts: list[Callable[[], None]] = []
        with ExitStack() as piece:

            def between(call: Callable[[], None]) -> None:
                piece.close()
                parts.append(call)
                piece.enter_context(self._piece(parts))

            piece.enter_context(self._piece(parts))
            output = function(between)
        return parts, lent(output)

    @contextmanager
    def _piece(self, parts: list[Callable[[], None]]) -> Iterator[None]:
        """Record what is launched, and add its replay to the parts of a step.

        Begun and ended outside inference mode: the random generator's state is shared by all
        recordings of a process, and what was made inside cannot be written outside, where the next
        recording may be made or repeated.
        """
        graph = torch.cuda.CUDAGraph()
        shared = {"pool": self._first.pool()} if self._first else {}
        with torch.inference_mode(False):
            # Other threads' engines may take memory meanwhile: only this one's calls are watched.
            graph.capture_begin(**shared, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            with suppress(RuntimeError):  # that of a broken recording follows from the first
                graph.capture_end()
            raise
        with torch.inference_mode(False):
            graph.capture_end()
        self._first = self._first or graph
        parts.append(graph.replay)
