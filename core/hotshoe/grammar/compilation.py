"""Compiles grammars on threads of their own, and keeps those used last within a memory limit.

Equal grammars are compiled once, however many requests ask at a time. A library cannot be stopped
in the middle of its work: whoever waits gives up after a time limit, while the thread goes on.
Others take the place of threads that are held so, up to a limit, beyond which new grammars are
refused until one comes free. A slow backend delays only grammars of its own.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from hotshoe.errors import RequestError, UserError
from hotshoe.grammar.backend import CompiledGrammar, GrammarCompiler, Vocabulary
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.types import GrammarSpec

THREADS_PER_BACKEND = 2
#: With those in place of threads that are held. Each may keep a processor busy for good.
MAX_THREADS_PER_BACKEND = 6
#: What a grammar that failed to compile counts in the cache.
FAILURE_BYTES = 1024

Ready = tuple[GrammarCompiler, CompiledGrammar]


class Compilations:
    """Compiled grammars by specification.

    Args:
        backends: To compile with.
        vocabulary: Reads the vocabulary; called once, by a thread that compiles.
        cache_bytes: Memory that finished grammars may take before the least recently used goes.
        held_after_s: A grammar that takes longer to compile holds its thread.
    """

    def __init__(
        self,
        backends: GrammarBackends,
        vocabulary: Callable[[], Vocabulary],
        cache_bytes: int,
        held_after_s: float,
    ) -> None:
        self._backends = backends
        self._read_vocabulary = vocabulary
        self._vocabulary: Vocabulary | None = None
        self._vocabulary_lock = threading.Lock()
        self._cache_bytes = cache_bytes
        self._held_after_s = held_after_s
        self._lock = threading.Lock()
        self._grammars: OrderedDict[GrammarSpec, Future[Ready]] = OrderedDict()
        self._sizes: dict[GrammarSpec, int] = {}
        self._num_bytes = 0
        self._lanes: dict[str, _Lane] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all finished grammars."""
        return self._num_bytes

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, reading it at first."""
        with self._vocabulary_lock:
            if self._vocabulary is None:
                self._vocabulary = self._read_vocabulary()
            return self._vocabulary

    def submit(self, spec: GrammarSpec) -> Future[Ready]:
        """Return a compiler and the grammar, now or later.

        The future raises RequestError if the grammar is malformed or too large, or no thread is
        left to compile it.
        """
        assert spec.backend is not None, "the backend was chosen before"
        key = spec.bare
        with self._lock:
            future = self._grammars.get(key)
            if future is not None:
                self._grammars.move_to_end(key)
                return future
            future = Future()
            lane = self._lane(spec.backend)
            if lane.num_held() == MAX_THREADS_PER_BACKEND:
                future.set_exception(_no_thread(spec))
                return future
            self._grammars[key] = future
        lane.put(lambda: self._compile(lane, key, future, key))
        return future

    def _lane(self, name: str) -> _Lane:
        if name not in self._lanes:
            self._lanes[name] = _Lane(self._open, name, self._held_after_s)
        return self._lanes[name]

    def relieve(self) -> None:
        """Let others take the place of threads that are held; to be called while somebody waits."""
        for lane in self._lanes.values():
            lane.relieve()

    def close(self) -> None:
        """Let the threads end when they have finished what they are doing."""
        for lane in self._lanes.values():
            lane.close()

    def _open(self, name: str) -> GrammarCompiler:
        return self._backends[name].open(self.vocabulary())

    def _compile(
        self,
        lane: _Lane,
        key: GrammarSpec,
        future: Future[Ready],
        spec: GrammarSpec,
        earlier: UserError | None = None,
    ) -> None:
        """Compile what is known by a key, by one backend or by the next that serves it.

        Args:
            lane: Of the backend.
            key: What was asked for.
            future: Who waits for it.
            spec: The same for this backend.
            earlier: Why the backend before could not.
        """
        size, ready, failure = FAILURE_BYTES, None, None
        try:
            compiler = lane.compiler()
            grammar = compiler.compile(spec)
            size, ready = grammar.num_bytes, (compiler, grammar)
        except BaseException as error:  # a library may raise anything, a panic of Rust included
            failure = _as_request_error(spec, error)
            if earlier is not None:
                more = str(failure).removeprefix("grammar: ")
                failure = RequestError(f"{earlier}; {spec.backend}: {more}", "grammar")
            following = self._following(spec)
            if following is not None and following.backend is not None:
                with self._lock:
                    other = self._lane(following.backend)
                other.put(lambda: self._compile(other, key, future, following, failure))
                return
        self._count(key, size)  # before anybody hears of it, who may ask for the next at once
        if ready is not None:
            future.set_result(ready)
        else:
            future.set_exception(failure)

    def _following(self, spec: GrammarSpec) -> GrammarSpec | None:
        """Return what the next backend shall compile, if one would."""
        for number, name in enumerate(spec.fallbacks, 1):
            following = replace(spec, backend=name, fallbacks=spec.fallbacks[number:])
            try:
                if self._backends.objection(name, following) is None:
                    return following
            except RequestError:  # malformed after all
                return None
        return None

    def _count(self, key: GrammarSpec, size: int) -> None:
        """Add what a finished grammar takes, and forget those used least recently if need be."""
        with self._lock:
            self._sizes[key] = size
            self._num_bytes += size
            while self._num_bytes > self._cache_bytes:
                oldest = next(old for old in self._grammars if old in self._sizes)
                del self._grammars[oldest]
                self._num_bytes -= self._sizes.pop(oldest)


class _Lane:
    """One backend's queue, threads and compiler. The threads never keep a process alive."""

    def __init__(
        self, open_backend: Callable[[str], GrammarCompiler], name: str, held_after_s: float
    ) -> None:
        self._open = open_backend
        self._name = name
        self._held_after_s = held_after_s
        self._since: dict[int, float] = {}  # by thread: when it began what it is doing
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._compiler: GrammarCompiler | None = None
        self._threads: list[threading.Thread] = []

    def put(self, job: Callable[[], None]) -> None:
        """Do a job soon."""
        self._jobs.put(job)
        self.relieve()

    def relieve(self) -> None:
        """Start a thread if there are too few that are not held."""
        number = len(self._threads)
        if number < min(THREADS_PER_BACKEND + self.num_held(), MAX_THREADS_PER_BACKEND):
            name = f"hotshoe-grammar-{self._name}-{number}"
            thread = threading.Thread(target=self._run, args=(number,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def num_held(self) -> int:
        """Count the threads that are held."""
        begun = time.monotonic() - self._held_after_s
        return sum(since <= begun for since in list(self._since.values()))

    def compiler(self) -> GrammarCompiler:
        """Return the compiler; the first caller makes it, others wait."""
        with self._lock:
            if self._compiler is None:
                self._compiler = self._open(self._name)
            return self._compiler

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _run(self, number: int) -> None:
        while (job := self._jobs.get()) is not None:
            self._since[number] = time.monotonic()
            job()
            del self._since[number]


def _no_thread(spec: GrammarSpec) -> UserError:
    return RequestError(
        f"grammar: {MAX_THREADS_PER_BACKEND} grammars hold all threads that compile with "
        f"{spec.backend}; try again later, or restart the engine",
        "grammar",
    )


def _as_request_error(spec: GrammarSpec, error: BaseException) -> UserError:
    if isinstance(error, UserError):
        return error
    cause = " ".join(str(error).split()) or type(error).__name__
    return RequestError(
        f"grammar: {spec.backend} cannot compile this {spec.kind}: {cause}", "grammar"
    )
