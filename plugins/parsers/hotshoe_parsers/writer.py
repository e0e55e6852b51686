"""Writes events: joins what comes at once, numbers calls, and trims white space around markers.

White space that touches a call or a mark of reasoning belongs to the marker, as chat templates put
it there; so trailing white space waits until something follows it.
"""

from __future__ import annotations

from hotshoe.text.parsing import (
    ContentDelta,
    Event,
    MalformedCall,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

#: White space that is trimmed; other kinds, such as a no-break space, are text.
SPACE = " \t\r\n"

_Kind = type[ContentDelta | ReasoningDelta]


class Writer:
    """Collects the events of one response."""

    __slots__ = ("_arguments", "_count", "_events", "_held", "_kind", "_open", "_text", "_trim")

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._kind: _Kind = ContentDelta
        self._text: list[str] = []
        self._held: list[str] = []
        self._arguments: list[str] = []
        self._trim = False
        self._count = 0
        self._open: int | None = None

    @property
    def in_call(self) -> bool:
        """Whether a call has begun and not ended."""
        return self._open is not None

    def content(self, text: str) -> None:
        """Write content."""
        self._write(ContentDelta, text)

    def reasoning(self, text: str) -> None:
        """Write reasoning."""
        self._write(ReasoningDelta, text)

    def trim(self) -> None:
        """Drop white space that has just been written, and that which is written next."""
        self._held.clear()
        self._trim = True

    def start(self, name: str, id: str | None = None) -> None:
        """Begin a call."""
        self._flush()
        self._open = self._count
        self._count += 1
        self._events.append(ToolCallStart(self._open, name, id))

    def arguments(self, delta: str) -> None:
        """Write arguments of the open call."""
        self._arguments.append(delta)

    def end(self) -> None:
        """End the open call."""
        assert self._open is not None, "no call has begun"
        self._flush()
        self._events.append(ToolCallEnd(self._open))
        self._open = None
        self.trim()

    def malformed(self, text: str, reason: str) -> None:
        """Give up what seemed to be a call; it is void if it has begun."""
        self._flush()
        self._events.append(MalformedCall("".join([*self._held, text]), reason, self._open))
        self._held.clear()
        self._open = None
        self._trim = False

    def close(self) -> None:
        """End the response."""
        assert self._open is None, "a call has not ended"
        self._keep_space()

    def take(self) -> list[Event]:
        """Return the events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def again(self, events: list[Event]) -> None:
        """Put events back that have just been taken."""
        self._events = events

    def _write(self, kind: _Kind, text: str) -> None:
        if kind is not self._kind:
            self._keep_space()
            self._flush()
            self._kind = kind
        if self._trim:
            text = text.lstrip(SPACE)
        solid = text.rstrip(SPACE)
        if solid:
            self._keep_space()
            self._trim = False
            self._text.append(solid)
        if len(solid) < len(text):
            self._held.append(text[len(solid) :])

    def _keep_space(self) -> None:
        self._text.extend(self._held)
        self._held.clear()

    def _flush(self) -> None:
        if self._text:
            self._events.append(self._kind("".join(self._text)))
            self._text.clear()
        if self._arguments:
            assert self._open is not None, "no call has begun"
            self._events.append(ToolCallArguments(self._open, "".join(self._arguments)))
            self._arguments.clear()
