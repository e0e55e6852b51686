"""Parts of programs: what they read, what they leave, and that cutting changes neither."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotshoe.text.parsing import ContentDelta
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.machine import MAX_WORD_CHARS, Machine, Malformed, Reader, Steps

Part = Callable[[Reader, list[Any]], Steps[Any]]


class Once:
    """A scanner that is done behind a semicolon and errs at an exclamation mark."""

    def __init__(self) -> None:
        self.done, self.error, self.seen = False, "", ""

    def advance(self, text: str, begin: int) -> int:
        for at in range(begin, len(text)):
            if text[at] == "!":
                self.error = "loud"
                return at
            self.seen += text[at]
            if text[at] == ";":
                self.done = True
                return at + 1
        return len(text)


def run(part: Part, text: str, pieces: int = 1) -> tuple[Any, str, str]:
    """Return a part's result or error, what it gave out, and what it left."""
    results: list[Any] = []
    given: list[Any] = []
    left: list[str] = []

    def program(reader: Reader, writer: object) -> Steps[None]:
        try:
            results.append((yield from part(reader, given)))
        except Malformed as error:
            results.append(error)
        yield from reader.rest(left.append)

    machine = Machine(program)
    for at in range(0, len(text), pieces):
        machine.feed(text[at : at + pieces])
    machine.finish()
    (result,) = results
    return (str(result) if isinstance(result, Malformed) else result), "".join(given), "".join(left)


def until(*markers: str) -> Part:
    return lambda reader, out: reader.until(StopAutomaton(markers), out.append)


CASES: list[tuple[str, Part, str, tuple[Any, str, str]]] = [
    ("peek", lambda r, _: r.peek(), "ab", ("a", "", "ab")),
    ("peek at the end", lambda r, _: r.peek(), "", ("", "", "")),
    ("char", lambda r, _: r.char(), "ab", ("a", "", "b")),
    ("char at the end", lambda r, _: r.char(), "", ("", "", "")),
    ("space", lambda r, _: r.space(), " \t\r\n a", (None, "", "a")),
    ("no-break space", lambda r, _: r.space(), "\u00a0a", (None, "", "\u00a0a")),
    ("literal", lambda r, _: r.literal("abc"), "abcd", (True, "", "d")),
    ("other literal", lambda r, _: r.literal("abc"), "abd", (False, "", "abd")),
    ("part of a literal", lambda r, _: r.literal("abc"), "ab", (False, "", "ab")),
    ("expect", lambda r, _: r.expect("ab"), "abc", (None, "", "c")),
    ("expect other", lambda r, _: r.expect("ab"), "ac", ("'ab' is missing", "", "ac")),
    ("close", lambda r, _: r.close("</a>"), " </a>b", (None, "", "b")),
    ("close with a part", lambda r, _: r.close("</a>"), "\n</", (None, "", "")),
    ("close with nothing", lambda r, _: r.close("</a>"), "", (None, "", "")),
    ("close with other", lambda r, _: r.close("</a>"), " </b>", ("'</a>' is missing", "", "</b>")),
    ("word", lambda r, _: r.word("<["), "ab[", ("ab", "", "[")),
    ("empty word", lambda r, _: r.word("<["), "<", ("", "", "<")),
    ("word to the end", lambda r, _: r.word("<"), "ab", ("the text ends within a name", "", "")),
    ("longest word", lambda r, _: r.word("<"), "a" * 256 + "<", ("a" * 256, "", "<")),
    ("too long a word", lambda r, _: r.word("<"), "a" * 257, ("a name is too long", "", "a")),
    ("scan", lambda r, out: r.scan(Once(), out.append), "a;b", (None, "a;", "b")),
    ("scan an error", lambda r, out: r.scan(Once(), out.append), "a!b", ("loud", "a", "!b")),
    (
        "scan to the end",
        lambda r, out: r.scan(Once(), out.append),
        "ab",
        ("the text ends within the arguments", "ab", ""),
    ),
    ("until", until("<x>"), "a<x>b", ("<x>", "a", "b")),
    ("until the end", until("<x>"), "a<x", ("", "a<x", "")),
    ("until one of two", until("<x>", "<y"), "a<<y<x>", ("<y", "a<", "<x>")),
    ("until the longer", until("x>", "<x>"), "a<x>", ("<x>", "a", "")),
    ("until no marker", until(), "ab", ("", "ab", "")),
]


@pytest.mark.parametrize("pieces", [1, 2, 3, 1000])
@pytest.mark.parametrize(
    ("part", "text", "found"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_parts(part: Part, text: str, found: tuple[Any, str, str], pieces: int) -> None:
    assert run(part, text, pieces) == found


def test_the_bound_of_words_is_that_of_the_cases() -> None:
    assert MAX_WORD_CHARS == 256


@given(st.text("ab<x>", max_size=30), st.integers(1, 5))
def test_until_finds_what_find_finds(text: str, pieces: int) -> None:
    at = text.find("<x>")
    expected = ("", text, "") if at < 0 else ("<x>", text[:at], text[at + 3 :])
    assert run(until("<x>"), text, pieces) == expected


@pytest.mark.parametrize("pieces", [1, 2, 1000])
def test_what_is_read_since_a_mark(pieces: int) -> None:
    def part(reader: Reader, out: list[Any]) -> Steps[str]:
        yield from reader.until(StopAutomaton(["<"]), out.append)
        reader.mark("<")
        yield from reader.space()
        yield from reader.expect("b")
        yield from reader.literal("no")
        return reader.since_mark()

    assert run(part, "a< bcd", pieces) == ("< b", "a", "cd")


def test_text_is_given_out_as_it_comes() -> None:
    def program(reader: Reader, writer: Any) -> Steps[None]:
        yield from reader.until(StopAutomaton(["<x>"]), writer.content)

    machine = Machine(program)
    assert machine.feed("ab<") == [ContentDelta("ab")]
    assert machine.feed("x") == []
    assert machine.feed("c") == [ContentDelta("<xc")]
    assert machine.feed("") == []
    assert machine.feed("<") == []
    assert machine.finish() == [ContentDelta("<")]


def test_finish_without_text() -> None:
    machine = Machine(lambda reader, writer: reader.rest(writer.content))
    assert machine.finish() == []


def test_a_program_that_does_not_end_is_noticed() -> None:
    def program(reader: Reader, writer: object) -> Steps[None]:
        while True:
            yield

    with pytest.raises(AssertionError, match="after the end"):
        Machine(program).finish()
