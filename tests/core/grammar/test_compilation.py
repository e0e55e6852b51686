"""Grammars are compiled once, off the caller's thread, and forgotten by memory."""

import queue
import threading
import time
from dataclasses import replace

import pytest

from hotshoe.errors import RequestError
from hotshoe.grammar.backends import GrammarBackends
from hotshoe.grammar.compilation import (
    FAILURE_BYTES,
    MAX_THREADS_PER_BACKEND,
    THREADS_PER_BACKEND,
    Compilations,
)
from hotshoe.types import GrammarSpec


def spec(value: str, **more) -> GrammarSpec:
    return replace(GrammarSpec.regex(value), backend="toy", **more)


@pytest.fixture
def compilations(toy, vocabulary):
    made = Compilations(GrammarBackends({"toy": lambda: toy}), lambda: vocabulary, 2500, 0.0)
    yield made
    toy.gate.set()
    toy.release.set()
    made.close()


def test_equal_grammars_are_compiled_once(compilations, toy) -> None:
    toy.gate.clear()
    futures = [compilations.submit(spec("1 2")) for _ in range(5)]
    futures.append(compilations.submit(spec("1 2", after=((7,),))))
    assert not any(future.done() for future in futures)
    toy.gate.set()
    grammars = {id(future.result(60)[1]) for future in futures}
    assert len(grammars) == 1
    assert toy.compiled == ["1 2"]
    assert toy.opened == 1


def test_the_least_recently_used_goes_first(compilations, toy) -> None:
    for value in ("1", "2", "1", "3"):  # 1000 bytes each, 2500 fit
        compilations.submit(spec(value)).result(60)
    assert compilations.num_bytes == 2000
    compilations.submit(spec("1")).result(60)
    compilations.submit(spec("2")).result(60)
    assert toy.compiled == ["1", "2", "3", "2"]


def test_a_grammar_counts_before_anybody_hears_of_it(compilations, toy) -> None:
    counted: queue.SimpleQueue[int] = queue.SimpleQueue()
    expected = 0
    for value, size in (("1", 1000), ("broken", FAILURE_BYTES)):
        toy.gate.clear()
        future = compilations.submit(spec(value))
        future.add_done_callback(lambda _: counted.put(compilations.num_bytes))
        toy.gate.set()
        expected += size
        assert counted.get(timeout=60) == expected


def test_failures_are_remembered_and_plain(compilations, toy) -> None:
    for _ in range(2):
        with pytest.raises(RequestError, match="a bracket is open"):
            compilations.submit(spec("broken")).result(60)
    assert toy.compiled == ["broken"]
    with pytest.raises(RequestError, match="toy cannot compile this regex: oh no"):
        compilations.submit(spec("bug")).result(60)
    compilations.close()
    assert compilations.num_bytes == 2 * FAILURE_BYTES


def test_a_panic_costs_no_thread(compilations) -> None:
    for i in range(2 * THREADS_PER_BACKEND):
        with pytest.raises(RequestError, match="of a library in another language"):
            compilations.submit(spec(f"panic {i}")).result(60)
        compilations.submit(spec(str(i))).result(60)


def test_threads_that_are_held_are_replaced(compilations, toy) -> None:
    held = [compilations.submit(spec(f"slow {i}")) for i in range(MAX_THREADS_PER_BACKEND - 1)]
    waiting = compilations.submit(spec("1 2"))
    while not waiting.done():
        compilations.relieve()
        time.sleep(0.001)
    assert len(toy.compiled) == MAX_THREADS_PER_BACKEND
    assert not any(future.done() for future in held)


def test_no_more_are_held_than_there_may_be_threads(compilations, toy) -> None:
    ready = compilations.submit(spec("1"))
    assert ready.result(60)
    held = [compilations.submit(spec(f"slow {i}")) for i in range(MAX_THREADS_PER_BACKEND)]
    while len(toy.compiled) <= MAX_THREADS_PER_BACKEND:
        compilations.relieve()
        time.sleep(0.001)
    for _ in range(2):
        with pytest.raises(RequestError, match="6 grammars hold all threads that compile with toy"):
            compilations.submit(spec("2")).result(60)
    assert compilations.submit(spec("1")) is ready
    toy.release.set()
    for future in held:
        future.result(60)
    while compilations.submit(spec("2")).exception(60):  # until a thread says that it is free
        time.sleep(0.001)


def test_a_slow_backend_delays_no_other(toy, vocabulary) -> None:
    slow = type(toy)()
    both = Compilations(
        GrammarBackends({"toy": lambda: toy, "slow": lambda: slow}), lambda: vocabulary, 10**6, 60
    )
    waiting = [both.submit(replace(spec(str(i)), backend="slow")) for i in range(4)]
    both.submit(spec("1")).result(60)
    assert not any(future.done() for future in waiting)
    slow.gate.set()
    for future in waiting:
        future.result(60)
    both.close()


def test_the_vocabulary_is_read_once_and_not_by_the_caller(toy, vocabulary) -> None:
    readers: list[str] = []

    def read():
        readers.append(threading.current_thread().name)
        return vocabulary

    lazy = Compilations(GrammarBackends({"toy": lambda: toy}), read, 10**6, 60)
    for future in [lazy.submit(spec(str(i))) for i in range(6)]:
        future.result(60)
    lazy.close()
    assert len(readers) == 1
    assert readers[0].startswith("hotshoe-grammar-toy")
    assert lazy.vocabulary() is vocabulary


def test_a_grammar_that_one_backend_cannot_compile_goes_to_the_next(toy, vocabulary) -> None:
    other, refuser = type(toy)(), type(toy)()
    other.gate.set()
    refuser.refusal = lambda spec: "not that"
    backends = GrammarBackends(
        {"toy": lambda: toy, "refuser": lambda: refuser, "other": lambda: other}
    )
    made = Compilations(backends, lambda: vocabulary, 2500, 5.0)
    toy.compiled = Failing(toy.compiled)
    try:
        for _ in range(2):
            compiler, _ = made.submit(backends.choose(GrammarSpec.regex("1"))).result(60)
            assert compiler.backend is other
        assert (toy.compiled, other.compiled) == (["1"], ["1"])
        with pytest.raises(RequestError, match=r"oh no.*; other: a bracket is open"):
            made.submit(backends.choose(GrammarSpec.regex("broken"))).result(60)
        named = replace(GrammarSpec.regex("2"), backend="toy")
        with pytest.raises(RequestError, match="oh no"):  # no other one was asked for
            made.submit(backends.choose(named)).result(60)
        assert other.compiled == ["1", "broken"]
    finally:
        made.close()


class Failing(list):
    """Notes what is compiled, and lets it fail."""

    def append(self, value: str) -> None:
        super().append(value)
        raise ZeroDivisionError("oh no")
