"""Candidate `native` of slot `graph`: decode steps as lists of kernel calls, repeated in C++.

A list holds the kernels' addresses and numbers, so everything that a step computes must be a call
of a kernel of this platform, or of PyTorch as far as `repeated.py` knows it. What else there is
makes a step run as it is: other candidates are refused when an engine starts, other calls of
PyTorch when a step is recorded, and a list is believed only once it has repeated its step, bit for
bit, over poisoned memory. Until then states of sequences stay as they are: they move on once a
step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hotshoe.platform import DeviceFacts
from hotshoe.slots import GraphSpec, Verdict
from hotshoe_cpu import repeated
from hotshoe_cpu.arena import Arena
from hotshoe_cpu.native import judge, kernels

LOG = logging.getLogger(__name__)

#: Whose calls are recorded.
RECORDED = frozenset(
    (
        "add_rms_norm=native",
        "attention=native",
        "attention=padded",
        "block_indexer=native",
        "compress=native",
        "compressed_attention=native",
        "embedding=native",
        "gated_activation=native",
        "gated_delta=native",
        "gated_mlp=native",
        "hyper_connection=native",
        "indexer=native",
        "layer_norm=native",
        "linear=groups",
        "linear=native",
        "linear=widened",
        "lora=native",
        "mla_attention=native",
        "moe=native",
        "relative_attention=native",
        "rg_lru=native",
        "rms_norm=native",
        "rotary_and_cache=native",
        "rotary_and_cache=padded",
        "selective_scan=native",
        "short_conv=native",
        "sparse_mla_attention=native",
        "state_space=native",
    )
)
#: With more rows a step computes so long that what lies between its kernels does not matter.
MAX_ROWS = 64
#: A step of so many rows is recorded when it is met the n-th time: a list costs three steps.
RECORDED_AT = 8
#: Results of one step that live at once; most of them are logits.
ARENA_BYTES = 256 << 20


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
        self._native.rehearse(True)
        try:
            replay, cause = self._rehearsed(function)
        finally:
            self._native.rehearse(False)
        if cause and cause not in self._causes:
            self._causes.add(cause)
            LOG.warning("decode steps are computed without a recording: %s", cause)
        return (replay or function)(), replay

    def _rehearsed(self, function: Callable[[], Tensor]) -> tuple[Callable[[], Tensor] | None, str]:
        """Return what repeats a step, which states of sequences have not taken yet; else why
        nothing does."""
        watch = _Watch(self._native, self._arena)
        try:
            with watch:
                output = function()
        except Exception:
            if not watch.cause:
                raise
        if watch.cause:
            return None, watch.cause

        def replay() -> Tensor:
            for part in watch.parts:
                part()
            return output

        expected = output.clone()
        self._arena.poison()
        if torch.equal(_bytes(replay()), _bytes(expected)):
            return replay, ""
        return None, "something in it computes that is no operation"


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
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", repr(func))
        if func in repeated.QUESTIONS or name == "__get__":
            return func(*args, **kwargs)
        if func is torch.empty and kwargs.keys() == {"dtype"}:
            return self._empty(_size(args), **kwargs)
        if func is Tensor.new_empty and not kwargs:
            return self._empty(_size(args[1:]), args[0].dtype)
        if not repeated.known(func, args, kwargs):
            raise self._refused(f"it calls {name} of PyTorch")
        result = func(*args, **kwargs)
        if func in repeated.CHANGES:
            self._repeat(func, None, args, kwargs)
        elif not repeated.shares(result, args):
            result = repeated.replaced(result, self._placed)
            self._repeat(func, result, args, kwargs)
        elif func in repeated.RESULTS and any(x.numel() for x in repeated.tensors(result)):
            raise self._refused(f"it calls {name} of PyTorch in place")
        return result

    def _repeat(
        self, func: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Have a call made again behind the calls of kernels before it."""
        self._end_part()
        aliased = [repeated.replaced(value, self._arena.alias) for value in (result, args)]
        named = {key: repeated.replaced(x, self._arena.alias) for key, x in kwargs.items()}
        self.parts.append(repeated.repetition(func, *aliased, named))
        self._native.record_begin()

    def _placed(self, found: Tensor) -> Tensor:
        """Move what PyTorch has made to a place in the arena, where its form allows that."""
        if not found.numel() or not found.is_contiguous():
            return found
        return self._empty(tuple(found.shape), found.dtype).copy_(found)

    def _empty(self, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Place what an operation will write."""
        found = self._arena.empty(size, dtype)
        if found is not None:
            return found
        if prod(size):
            raise self._refused(f"no room in {ARENA_BYTES >> 20} MiB for its results")
        return torch.empty(size, dtype=dtype)

    def _refused(self, cause: str) -> NotRepeatableError:
        """Name the first cause, before anything is done that nothing repeats."""
        self.cause = self.cause or cause
        return NotRepeatableError(cause)


class NotRepeatableError(Exception):
    """A step does something that cannot be repeated."""


def _size(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return a size that is given as one argument or as several."""
    return tuple(args[0] if isinstance(args[0], Sequence) else args)


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)
