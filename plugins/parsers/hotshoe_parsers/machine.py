"""What every parser is made of: a reader, a writer, and a program that goes from one to the other.

A program is a generator that reads text and `yield`s whenever it needs more. It sees a stream of
characters and never how the text was cut, so cutting cannot change what it finds. What is looked
at twice is at most a marker long, so the work is linear in the text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

from hotshoe.text.parsing import Event, ToolCallStart
from hotshoe.text.stop import StopAutomaton
from hotshoe_parsers.writer import SPACE, Writer

T = TypeVar("T")
#: A part of a program: yields to ask for more text, returns what it found.
Steps = Generator[None, None, T]
Take = Callable[[str], None]
Program = Callable[["Reader", Writer], Steps[None]]

MAX_WORD_CHARS = 256


class Malformed(Exception):  # noqa: N818 (control flow that never leaves this package)
    """What is being read is no call; the message says why."""


class Scanner(Protocol):
    """Finds where something ends, seeing every character once."""

    done: bool
    error: str

    def advance(self, text: str, begin: int) -> int:
        """Go on from `begin`; return where the text, the thing, or what is valid of it ends."""
        ...


class Reader:
    """The text that has come and is not read yet."""

    __slots__ = ("_at", "_marked", "_marked_from", "_text", "ended")

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._marked: list[str] | None = None
        self._marked_from = 0
        self.ended = False

    def feed(self, text: str) -> None:
        """Take more text, and drop what has been read."""
        if self._marked is not None:
            self._marked.append(self._text[self._marked_from : self._at])
        self._text = self._text[self._at :] + text
        self._at = self._marked_from = 0

    def mark(self, before: str = "") -> None:
        """Remember what is read from here on until `forget`, and `before` before it."""
        self._marked = [before]
        self._marked_from = self._at

    def since_mark(self) -> str:
        """Return what has been read since the mark."""
        assert self._marked is not None, "no mark has been set"
        return "".join(self._marked) + self._text[self._marked_from : self._at]

    def forget(self) -> None:
        """Remove the mark."""
        self._marked = None

    def peek(self) -> Steps[str]:
        """Return the next character without reading it; nothing at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def char(self) -> Steps[str]:
        """Read one character; nothing at the end."""
        char = yield from self.peek()
        self._at += len(char)
        return char

    def space(self) -> Steps[None]:
        """Read white space, if any."""
        while (char := (yield from self.peek())) and char in SPACE:
            self._at += 1

    def literal(self, expected: str) -> Steps[bool]:
        """Read this text if it comes next, else nothing."""
        while True:
            found = self._text[self._at : self._at + len(expected)]
            if found == expected:
                self._at += len(expected)
                return True
            if self.ended or not expected.startswith(found):
                return False
            yield

    def expect(self, expected: str) -> Steps[None]:
        """Read this text.

        Raises:
            Malformed: Something else comes next.
        """
        if not (yield from self.literal(expected)):
            raise Malformed(f"{expected!r} is missing")

    def close(self, expected: str) -> Steps[None]:
        """Read white space and a closing marker, which may be cut off where all text ends.

        Raises:
            Malformed: Something else comes next.
        """
        yield from self.space()
        if (yield from self.literal(expected)):
            return
        if not self.ended or not expected.startswith(self._text[self._at :]):
            raise Malformed(f"{expected!r} is missing")
        self._at = len(self._text)

    def word(self, stops: str) -> Steps[str]:
        """Read a short text up to one of the characters `stops`, which is left.

        Raises:
            Malformed: None comes within MAX_WORD_CHARS characters.
        """
        chars: list[str] = []
        while char := (yield from self.peek()):
            if char in stops:
                return "".join(chars)
            if len(chars) == MAX_WORD_CHARS:
                raise Malformed("a name is too long")
            chars.append(char)
            self._at += 1
        raise Malformed("the text ends within a name")

    def scan(self, scanner: Scanner, take: Take) -> Steps[None]:
        """Read as far as a scanner goes, giving the text out as it comes.

        Raises:
            Malformed: The scanner finds an error, or the text ends before the scanner is done.
        """
        while True:
            self._give(scanner.advance(self._text, self._at), take)
            if scanner.error:
                raise Malformed(scanner.error)
            if scanner.done:
                return
            if self.ended:
                raise Malformed("the text ends within the arguments")
            yield

    def until(self, markers: StopAutomaton, take: Take) -> Steps[str]:
        """Read up to the first marker and past it, giving the text before it out as it comes.

        Returns:
            The marker; nothing when the text ends without one.
        """
        state, begin = 0, self._at
        match, depth, step = markers.match, markers.depth, markers.step
        while True:
            text = self._text
            for at in range(begin, len(text)):
                state = step(state, text[at])
                marker = match[state]
                if marker is not None:
                    self._give(at + 1 - len(marker), take)
                    self._at = at + 1
                    return marker
            self._give(len(text) - (0 if self.ended else depth[state]), take)
            if self.ended:
                return ""
            begin = len(text) - self._at  # where the text goes on once `feed` has dropped the rest
            yield

    def rest(self, take: Take) -> Steps[None]:
        """Read all that still comes."""
        while (yield from self.peek()):
            self._give(len(self._text), take)

    def _give(self, end: int, take: Take) -> None:
        if end > self._at:
            begin, self._at = self._at, end
            take(self._text[begin:end])


class Machine:
    """A `ResponseParser` that runs a program."""

    __slots__ = ("_reader", "_steps", "_writer")

    def __init__(self, program: Program) -> None:
        self._reader = Reader()
        self._writer = Writer()
        self._steps = program(self._reader, self._writer)

    def feed(self, text: str) -> list[Event]:
        self._reader.feed(text)
        next(self._steps)
        return self._writer.take()

    def begin(self, text: str) -> None:
        """Take the end of the prompt. All that comes of it is the start of a call, if any."""
        self._writer.again([e for e in self.feed(text) if isinstance(e, ToolCallStart)])

    def finish(self) -> list[Event]:
        self._reader.feed("")
        self._reader.ended = True
        for _ in self._steps:
            raise AssertionError("a program waits for text after the end")
        self._writer.close()
        return self._writer.take()
