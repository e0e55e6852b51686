"""Compiles the kernels of steps side by side, in threads, before the steps run.

A step waits for each kernel that it calls for the first time, and while one is compiled nothing
else happens. In a rehearsal the launch of such a kernel does nothing, and the step goes on to its
next kernel. What the kernel would have written is zeros, so that operations behind it find indices
that exist. When the rehearsal is over, threads compile what it has met. Triton releases Python's
lock while it compiles, except to read the kernel's source.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime.jit import JITFunction

THREADS = 12
#: Launches of kernels in packages named so do nothing. Those of others are made: a tuner among them
#: would time nothing.
OWN = "hotshoe_"
#: Held by the thread that loads a launcher. Triton gives all of them one name, and Python knows by
#: a name the one that was loaded last.
LOADING = threading.Lock()
#: What makes tensors without values.
UNWRITTEN = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (Tensor, "new_empty"),
    (Tensor, "new_empty_strided"),
)


@contextmanager
def rehearsal(device: int) -> Iterator[None]:
    """Let this thread's launches of kernels that are not compiled do nothing, and compile them.

    At the end all are compiled, unless a step failed. A kernel that cannot be compiled says so when
    it is next launched.

    Args:
        device: Its number, for the threads.
    """
    if knobs.runtime.jit_cache_hook is not None or knobs.runtime.interpret:
        yield  # somebody else decides what is compiled, or nothing is
        return
    prompter = knobs.runtime.jit_cache_hook = _Prompter()
    try:
        with _zeros():
            yield
    except BaseException:  # also where a user interrupts
        prompter.end()
        raise
    finally:
        knobs.runtime.jit_cache_hook = None
    prompter.compile(device)


def settle(kernel: JITFunction) -> int:
    """Give a kernel its key, after those functions that it calls have theirs; return its length.

    Triton's key has the constants of a called function only where that has a key already. So it
    would depend on the order in which kernels are met.
    """
    length = len(kernel.src)
    for name in kernel.fn.__code__.co_names:
        called = kernel.__globals__.get(name)
        if isinstance(called, JITFunction) and called is not kernel:
            length += settle(called)
    _key = kernel.cache_key
    return length


class _Prompter:
    """Is asked by Triton before each compilation, and answers whether to leave it out."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._met: list[tuple[int, dict[str, Any], str, _Coming]] = []

    def __call__(self, *, fn: Any, compile: Any, **rest: Any) -> bool:
        elsewhere = threading.get_ident() != self._thread  # while it compiles, or another engine
        if elsewhere or not fn.module.startswith(OWN):
            return False
        kernel, key = fn.jit_function, compile["key"]
        length = settle(kernel)
        kept = kernel.device_caches[compile["device"]][0]
        kept[key] = coming = _Coming(kernel, compile["specialization_data"], self._thread)
        self._met.append((length, kept, key, coming))
        return True

    def compile(self, device: int) -> None:
        """Compile what was met, the longest first, and put it where it was waited for.

        Not before the rehearsal is over: threads would take Python's lock from it, and what it
        meets last would be begun late.
        """
        threads = min(THREADS, os.cpu_count() or 1)
        take = torch.accelerator.set_device_index
        longest_first = sorted(self._met, key=lambda met: -met[0])
        sources = {coming.kernel.ASTSource for _, _, _, coming in longest_first}
        pool = ThreadPoolExecutor(threads, "hotshoe-compile", take, (device,))
        try:
            with _reading_in_turn(sources):
                for _, _, _, coming in longest_first:
                    pool.submit(coming.make)
                pool.shutdown()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self.end()

    def end(self) -> None:
        """Put what was compiled where it was waited for; what launches nothing must not stay."""
        for _, kept, key, coming in self._met:
            kept.pop(key, None)
            if not coming.found.cancel() and coming.found.exception() is None:
                kept[key] = coming.found.result()


class _Coming:
    """Stands in Triton's table for a kernel that is being compiled.

    The rehearsing thread launches nothing; another one, of an engine at work, waits for the kernel.
    """

    function = packed_metadata = None

    def __init__(self, kernel: JITFunction, specialization: str, thread: int) -> None:
        self.found = Future[Any]()
        self.kernel, self._specialization, self._thread = kernel, specialization, thread

    def make(self) -> None:
        """Compile the kernel, and have it loaded with what launches it, which is compiled, too."""
        try:
            found = self.kernel.preload(self._specialization)
            with LOADING:
                _loaded = found.run
            self.found.set_result(found)
        except Exception as error:
            self.found.set_exception(error)

    def result(self) -> Any:
        """Return what is launched."""
        if threading.get_ident() == self._thread:
            return self
        try:
            return self.found.result()
        except CancelledError:  # the rehearsal has ended early
            return self.kernel.preload(self._specialization)

    def launch_metadata(self, *arguments: Any) -> None:
        """Say nothing of a launch that is none."""

    def run(self, *arguments: Any) -> None:
        """Launch nothing."""


@contextmanager
def _reading_in_turn(sources: Iterable[Any]) -> Iterator[None]:
    """Let threads read kernels' source one after the other.

    That is Python's work, for which they would have to take turns anyway, and those that compile
    need Python's lock often and for short: they would wait for each reader.
    """
    turn = threading.RLock()

    def reading(make_ir: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **named: Any) -> Any:
            with turn:
                return make_ir(*arguments, **named)

        return read

    before = [(source, source.make_ir) for source in sources]
    for source, make_ir in before:
        source.make_ir = reading(make_ir)
    try:
        yield
    finally:
        for source, make_ir in before:
            source.make_ir = make_ir


@contextmanager
def _zeros() -> Iterator[None]:
    """Let tensors that a kernel is to write begin with zeros, in all threads.

    PyTorch's own means, a dispatch mode, imports its compiler, which takes five seconds.
    """
    before = [(owner, name, getattr(owner, name)) for owner, name in UNWRITTEN]
    for owner, name, make in before:
        setattr(owner, name, _zeroing(make))
    try:
        yield
    finally:
        for owner, name, make in before:
            setattr(owner, name, make)


def _zeroing(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *arguments, **named: make(*arguments, **named).zero_()
