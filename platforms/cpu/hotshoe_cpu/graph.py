"""Candidate `native` of slot `graph`: decode steps as lists of kernel calls, repeated in C++.

A list holds the kernels' addresses and numbers, so everything that a step computes must be a call
of a kernel of this platform, or one of a few operations of PyTorch that are made again. What
else there is makes a step run as it is: other candidates are refused when an engine starts, other
calls of PyTorch when a step is recorded, and a list is believed only once it has repeated its step,
bit for bit, over poisoned memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GraphSpec, Verdict
from hotshoe_cpu.arena import Arena
from hotshoe_cpu.native import judge, kernels

LOG = logging.getLogger(__name__)

#: Whose calls are recorded.
RECORDED = frozenset(
    (
        "add_rms_norm=native",
        "attention=native",
        "embedding=native",
        "gated_activation=native",
        "gated_mlp=native",
        "layer_norm=native",
        "linear=groups",
        "linear=native",
        "linear=widened",
        "lora=native",
        "moe=native",
        "rms_norm=native",
        "rotary_and_cache=native",
    )
)
#: With more rows a step computes so long that what lies between its kernels does not matter.
MAX_ROWS = 64
#: A step of so many rows is recorded when it is met the n-th time: a list costs two steps.
RECORDED_AT = 8
#: Results of one step that live at once; most of them are logits.
ARENA_BYTES = 256 << 20

#: What asks a tensor for its form. Properties are such questions, too.
QUESTIONS = frozenset((Tensor.data_ptr, Tensor.numel, Tensor.size, Tensor.stride, Tensor.__len__))
#: What looks at the same memory in another way, as far as it does not copy.
VIEWS = frozenset((Tensor.as_strided, Tensor.flatten, Tensor.view, Tensor.__getitem__))
#: What is made again, and how: its result has its place already.
AGAIN: Mapping[Any, Callable[..., object]] = {
    Tensor.clone: lambda out, x: out.copy_(x),
    Tensor.contiguous: lambda out, x: out.copy_(x),
    Tensor.index_select: lambda out, *args: torch.index_select(*args, out=out),
    Tensor.add_: lambda out, x, y: x.add_(y),
    Tensor.div_: lambda out, x, y: x.div_(y),
    Tensor.mul_: lambda out, x, y: x.mul_(y),
    Tensor.sigmoid_: lambda out, x: x.sigmoid_(),
    torch.add: lambda out, *args: torch.add(*args, out=out),
    torch.cat: lambda out, *args: torch.cat(*args, out=out),
    torch.tanh_: lambda out, x: x.tanh_(),
}


def supports(spec: GraphSpec, facts: DeviceFacts) -> Verdict:
    """Judge whose operations a step consists of."""
    others = ", ".join(sorted(set(spec.operations) - RECORDED))
    refusals = {
        f"only calls of this platform's kernels are recorded, not of {others}": bool(others),
        "steps that compute prompts take much longer than what lies between kernels": spec.pieces,
    }
    return judge(facts, "float32", refusals)


class Graph:
    """See `hotshoe.slots.GraphOp`."""

    sizes: Sequence[int] = range(1, MAX_ROWS + 1)

    def __init__(self, spec: GraphSpec, facts: DeviceFacts) -> None:
        self._native = kernels(facts)
        self._arena = Arena(ARENA_BYTES)
        self._causes: set[str] = set()

    def record(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Return what runs the function, and from its n-th call on the list that was made then."""
        met = 0
        repeat = function

        def step() -> Tensor:
            nonlocal met, repeat
            met += 1
            if met != RECORDED_AT:
                return repeat()
            output, found = self._recorded(function)
            repeat = found or function
            return output

        return step

    def _recorded(
        self, function: Callable[[], Tensor]
    ) -> tuple[Tensor, Callable[[], Tensor] | None]:
        """Run a step, and return with its result what repeats it, None where nothing does."""
        watch = _Watch(self._native, self._arena)
        with watch:
            output = function()
        parts, cause = watch.parts, watch.cause

        def replay() -> Tensor:
            for part in parts:
                part()
            return output

        if not cause:
            expected = output.clone()
            self._arena.poison()
            replay()
            if torch.equal(_bytes(output), _bytes(expected)):
                return output, replay
            output, cause = expected, "something in it computes that is no operation"
        if cause not in self._causes:
            self._causes.add(cause)
            LOG.warning("decode steps are computed without a recording: %s", cause)
        return output, None


class _Watch(TorchFunctionMode):
    """While it is entered, keeps what a step does in parts that can be made again.

    Attributes:
        cause: Why they do not repeat the step; "" if they do.
    """

    def __init__(self, native: ModuleType, arena: Arena) -> None:
        super().__init__()
        self._native, self._arena = native, arena
        self.parts: list[Callable[[], object]] = []
        self.cause = ""

    def __enter__(self) -> Self:
        self._arena.restart()
        self._native.record_begin()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._end_part()

    def _end_part(self) -> None:
        calls = self._native.record_end()
        if self._native.record_size(calls):
            self.parts.append(partial(self._native.record_replay, calls))

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", repr(func))
        if func in QUESTIONS or name == "__get__":
            return func(*args, **kwargs)
        if func is torch.empty and kwargs.keys() == {"dtype"}:
            return self._empty(args, **kwargs)
        result = func(*args, **kwargs)
        if func in AGAIN and not kwargs:
            self._end_part()
            self.parts.append(partial(AGAIN[func], result, *args))
            self._native.record_begin()
        elif func not in VIEWS or _memory(result) != _memory(args[0]):
            self.cause = self.cause or f"it calls {name} of PyTorch"
        return result

    def _empty(self, args: Sequence[Any], dtype: torch.dtype) -> Tensor:
        """Place what an operation will write."""
        size = args[0] if isinstance(args[0], Sequence) else args
        found = self._arena.empty(tuple(size), dtype)
        if found is None:
            self.cause = self.cause or f"no room in {ARENA_BYTES >> 20} MiB for its results"
            return torch.empty(*args, dtype=dtype)
        return found


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)
