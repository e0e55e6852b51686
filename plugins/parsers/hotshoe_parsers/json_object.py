"""Follows one JSON object or array by characters and knows where it ends; strict RFC 8259.

A table of states and a stack of open brackets: no value is built and no character seen twice.

Source: RFC 8259, sections 2 to 7.
"""

from __future__ import annotations

#: Deeper nesting is an error: readers of JSON commonly recurse.
MAX_DEPTH = 128

_SPACE = " \t\r\n"
_DIGITS = "0123456789"
_HEX = "0123456789abcdefABCDEF"
_TEXT = "text"  # any character without a meaning of its own, in a string
_NUMBER_END = "number end"  # any character that cannot go on a number

Row = dict[str, str]


def _row(*moves: tuple[str, str]) -> Row:
    return {char: state for chars, state in moves for char in chars}


_VALUE = _row(
    (_SPACE, "value"),
    ("{", "push {"),
    ("[", "push ["),
    ('"', "string"),
    ("-", "minus"),
    ("0", "zero"),
    ("123456789", "whole"),
    ("t", "rue"),
    ("f", "alse"),
    ("n", "ull"),
)
_EXPONENT = ("eE", "exponent")
_OVER: Row = {_NUMBER_END: "after"}
#: States that look at the stack; "after" is behind a value of the innermost bracket.
_STACKED = frozenset({"push {", "push [", "close", "after"})


def _string(name: str, then: str) -> dict[str, Row]:
    """Return the states of a string, which leads to state `then`."""
    states: dict[str, Row] = {
        name: {'"': then, "\\": f"{name} escape", _TEXT: name},
        f"{name} escape": _row(('"\\/bfnrt', name), ("u", f"{name} u1")),
    }
    for i in range(1, 5):
        states[f"{name} u{i}"] = _row((_HEX, f"{name} u{i + 1}" if i < 4 else name))
    return states


def _word(word: str) -> dict[str, Row]:
    """Return the states of a literal name after its first character."""
    return {word[i:]: {word[i]: word[i + 1 :] or "after"} for i in range(len(word))}


_ROWS: dict[str, Row] = {
    "value": _VALUE,
    "first {": _row((_SPACE, "first {"), ('"', "key"), ("}", "close")),
    "first [": _VALUE | _row((_SPACE, "first ["), ("]", "close")),
    "next key": _row((_SPACE, "next key"), ('"', "key")),
    "colon": _row((_SPACE, "colon"), (":", "value")),
    "after {": _row((_SPACE, "after {"), (",", "next key"), ("}", "close")),
    "after [": _row((_SPACE, "after ["), (",", "value"), ("]", "close")),
    "minus": _row(("0", "zero"), ("123456789", "whole")),
    "zero": _row((".", "point"), _EXPONENT) | _OVER,
    "whole": _row((_DIGITS, "whole"), (".", "point"), _EXPONENT) | _OVER,
    "point": _row((_DIGITS, "fraction")),
    "fraction": _row((_DIGITS, "fraction"), _EXPONENT) | _OVER,
    "exponent": _row(("+-", "sign"), (_DIGITS, "power")),
    "sign": _row((_DIGITS, "power")),
    "power": _row((_DIGITS, "power")) | _OVER,
    **_string("key", "colon"),
    **_string("string", "after"),
    **_word("rue"),
    **_word("alse"),
    **_word("ull"),
}


class JsonObject:
    """Scans one JSON object, or array, from its opening to its closing bracket.

    Args:
        opening: The opening bracket.

    Attributes:
        done: The closing bracket has been seen.
        error: What is wrong; empty while all is well.
    """

    __slots__ = ("_open", "_row", "done", "error")

    def __init__(self, opening: str = "{") -> None:
        self._open: list[str] = []
        self._row = {opening: f"push {opening}"}
        self.done = False
        self.error = ""

    def advance(self, text: str, begin: int) -> int:
        """Go on from `begin`; return where the text, the object, or what is valid of it ends."""
        row = self._row
        for at in range(begin, len(text)):
            char = text[at]
            state = row.get(char)
            if state is None and char >= " ":
                state = row.get(_TEXT)
            if state is None or state in _STACKED:
                state = self._settle(row, state, char)
                if self.done:
                    return at + 1
                if self.error:
                    return at
            row = _ROWS[state]
        self._row = row
        return len(text)

    def _settle(self, row: Row, state: str | None, char: str) -> str:
        """Return the state that a character leads to by way of the open brackets."""
        if state is None and _NUMBER_END in row:
            state = _ROWS[f"after {self._open[-1]}"].get(char)
        match state:
            case None:
                self.error = f"the arguments are not JSON: {char!r} is out of place"
                return ""
            case "push {" | "push [":
                if len(self._open) == MAX_DEPTH:
                    self.error = f"the arguments are nested deeper than {MAX_DEPTH}"
                self._open.append(state[-1])
                return f"first {state[-1]}"
            case "close":
                self._open.pop()
                self.done = not self._open
        if state in _STACKED:
            return f"after {self._open[-1]}" if self._open else ""
        return state
