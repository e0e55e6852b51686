"""Compiles the kernels of steps side by side, in processes, before the steps run.

A step waits for each kernel that it calls for the first time, and while one is compiled nothing
else happens. In a rehearsal the launch of such a kernel does nothing, and the step goes on to its
next kernel. What the kernel would have written is zeros, so that operations behind it find indices
that exist. Meanwhile processes compile what is not on disk. When the rehearsal is over, threads
load all kernels from there, and compile what no process could.

Ranks of one host meet the same kernels at the same time. Each kernel is compiled by that rank which
first has a process free for it, and the others wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from triton import knobs
from triton.runtime.jit import JITFunction

from hotshoe_triton.compiling import OWN, Compiler, Turns, settle, settle_all

#: Most processes that compile for all ranks of a host, and a rank's threads, which wait for them.
PROCESSES = 12
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
def rehearsal(device: int, ranks: int = 1) -> Iterator[Callable[[], bool]]:
    """Let this thread's launches of kernels that are not compiled do nothing, and compile them.

    At the end all are compiled, unless a step failed. A kernel that cannot be compiled says so when
    it is next launched. Gives what tells whether one was met that is not on disk.

    Args:
        device: Its number, for the threads.
        ranks: How many of this host rehearse at the same time.
    """
    if knobs.runtime.jit_cache_hook is not None or knobs.runtime.interpret:
        yield lambda: False  # somebody else decides what is compiled, or nothing is
        return
    settle_all()  # as steps that are not rehearsed may meet some first
    prompter = knobs.runtime.jit_cache_hook = _Prompter(device, ranks)
    try:
        with _zeros():
            yield prompter.lacks
    except BaseException:  # also where a user interrupts
        prompter.end()
        raise
    finally:
        knobs.runtime.jit_cache_hook = None
    prompter.load()


class _Prompter:
    """Is asked by Triton before each compilation, and answers whether to leave it out.

    Args:
        device: Its number, for the threads.
        ranks: How many share this host's processes.
    """

    def __init__(self, device: int, ranks: int) -> None:
        self._thread = threading.get_ident()
        self._met: list[tuple[dict[str, Any], str, _Coming]] = []
        threads = min(PROCESSES, os.cpu_count() or 1)
        self._most = max(threads // ranks, 1)
        take = torch.accelerator.set_device_index
        self._pool = ThreadPoolExecutor(threads, "hotshoe-compile", take, (device,))
        self._compilers: list[Compiler] = []
        self._idle: SimpleQueue[Compiler] = SimpleQueue()
        self._turns = Turns()
        self._looking = False

    def __call__(self, *, fn: Any, compile: Any, **rest: Any) -> bool:
        elsewhere = threading.get_ident() != self._thread  # while it compiles, or another engine
        if self._looking or elsewhere or not fn.module.startswith(OWN):
            return False
        kernel, key = fn.jit_function, compile["key"]
        settle(kernel)  # where its module was imported meanwhile
        kept = kernel.device_caches[compile["device"]][0]
        coming = _Coming(kernel, compile["specialization_data"], self._thread)
        coming.on_disk = self._on_disk(coming)
        kept[key] = coming
        self._met.append((kept, key, coming))
        if coming.on_disk is None and self._start():
            coming.compiled = self._pool.submit(self._compile, coming)
        return True

    def lacks(self) -> bool:
        """Return whether a kernel was met that is not on disk."""
        return any(coming.on_disk is None for _, _, coming in self._met)

    def _on_disk(self, coming: _Coming) -> Any:
        """Return a kernel that was compiled before; None where there is none."""
        source = coming.kernel.ASTSource
        make_ir = source.make_ir

        def refuse(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() == self._thread:
                raise LookupError("a kernel that was compiled before needs no source")
            return make_ir(*arguments, **named)  # for another engine, which compiles

        source.make_ir = refuse
        self._looking = True
        try:
            return coming.kernel.preload(coming.specialization)
        except Exception:  # also what keeps it from being compiled, which its next launch tells
            return None
        finally:
            self._looking = False
            source.make_ir = make_ir

    def _start(self) -> bool:
        """Start one more process as far as there may be more; tell whether there is any."""
        if len(self._compilers) < self._most:
            with suppress(OSError):
                self._compilers.append(compiler := Compiler())
                self._idle.put(compiler)
        return bool(self._compilers)

    def _compile(self, coming: _Coming) -> None:
        kernel = coming.kernel, coming.specialization
        compiler = self._idle.get()
        try:
            if mine := self._turns.take(*kernel):
                compiler.compile(*kernel)
        finally:
            self._idle.put(compiler)
        if not mine:
            self._turns.take(*kernel, wait=True)
        self._turns.leave(*kernel)

    def load(self) -> None:
        """Load what was met, and put it where it was waited for.

        Threads wait for processes first, in the order in which these were asked.
        """
        try:
            for _, _, coming in self._met:
                self._pool.submit(coming.make)
            self._pool.shutdown()
        finally:
            self.end()

    def end(self) -> None:
        """Put what was compiled where it was waited for; what launches nothing must not stay."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for compiler in self._compilers:
            compiler.end()
        self._turns.end()
        for kept, key, coming in self._met:
            kept.pop(key, None)
            if not coming.found.cancel() and coming.found.exception() is None:
                kept[key] = coming.found.result()


class _Coming:
    """Stands in Triton's table for a kernel that is being compiled.

    The rehearsing thread launches nothing; another one, of an engine at work, waits for the kernel.

    Attributes:
        on_disk: The kernel, if it was compiled before.
        compiled: When a process has tried to compile it; None if none was asked to.
    """

    function = packed_metadata = None
    on_disk: Any = None
    compiled: Future[None] | None = None

    def __init__(self, kernel: JITFunction, specialization: str, thread: int) -> None:
        self.found = Future[Any]()
        self.kernel, self.specialization, self._thread = kernel, specialization, thread

    def make(self) -> None:
        """Have the kernel loaded with what launches it, and compiled if nobody has done it."""
        try:
            if self.compiled is not None:
                self.compiled.result()
            found = self.on_disk or self.kernel.preload(self.specialization)
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
            return self.kernel.preload(self.specialization)

    def launch_metadata(self, *arguments: Any) -> None:
        """Say nothing of a launch that is none."""

    def run(self, *arguments: Any) -> None:
        """Launch nothing."""


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
