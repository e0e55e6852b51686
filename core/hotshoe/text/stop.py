"""Finds stop strings in streamed text, reading every character once.

All stop strings of a request form one Aho-Corasick automaton: its state after a character is the
longest end of the text that begins a stop string, which is exactly what must be held back. The
match that completes first wins; of several that complete together, the longest. So the way a text
is cut into chunks changes nothing. One `StopMatcher` per sequence, made by the output processor.

Source: Aho and Corasick 1975, doi:10.1145/360825.360855.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class StopAutomaton:
    """The automaton of a set of stop strings; immutable, shared by the sequences of a request.

    Attributes:
        moves: Per state, the state after a character; characters not listed fall back.
        fallback: Per state, the state of its longest proper end; 0 is the root.
        depth: Per state, how many characters it has matched.
        match: Per state, the longest stop string that ends there, or None.
    """

    __slots__ = ("depth", "fallback", "match", "moves")

    def __init__(self, stops: Sequence[str]) -> None:
        self.moves: list[dict[str, int]] = [{}]
        self.fallback = [0]
        self.depth = [0]
        self.match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = 0
        for char in stop:
            if char not in self.moves[state]:
                self.moves[state][char] = len(self.moves)
                self.moves.append({})
                self.fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = self.moves[state][char]
        self.match[state] = stop

    def _link(self) -> None:
        queue = deque(self.moves[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self.moves[state].items():
                self.fallback[child] = self.step(self.fallback[state], char)
                self.match[child] = self.match[child] or self.match[self.fallback[child]]
                queue.append(child)

    def step(self, state: int, char: str) -> int:
        """Return the state after one more character."""
        while char not in self.moves[state]:
            if state == 0:
                return 0
            state = self.fallback[state]
        return self.moves[state][char]


class StopMatcher:
    """Lets text through until a stop string completes.

    Args:
        automaton: Of the request's stop strings.
        include_stop: Whether the stop string stays in the text.
    """

    __slots__ = ("_automaton", "_held", "_include_stop", "_state", "matched")

    def __init__(self, automaton: StopAutomaton, include_stop: bool = False) -> None:
        self._automaton = automaton
        self._include_stop = include_stop
        self._held = ""
        self._state = 0
        self.matched: str | None = None

    def push(self, text: str, may_stop: bool = True) -> str:
        """Take more text and return what is certain to stay.

        Args:
            text: What follows the text so far.
            may_stop: False passes over stop strings that complete here; one that merely begins
                here is still found later.
        """
        assert self.matched is None, "the text has already stopped"
        state, automaton = self._state, self._automaton
        match, step = automaton.match, automaton.step
        text, read = self._held + text, len(self._held)
        for at in range(read, len(text)):
            state = step(state, text[at])
            stop = match[state]
            if stop is not None and may_stop:
                self.matched, self._held = stop, ""
                return text[: at + 1 - (0 if self._include_stop else len(stop))]
        self._state = state
        certain = len(text) - automaton.depth[state]
        self._held = text[certain:]
        return text[:certain]

    def flush(self) -> str:
        """Return what is held back, at the end of the text."""
        held, self._held, self._state = self._held, "", 0
        return held
