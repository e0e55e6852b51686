"""Finds whose operation an exception came out of.

It reads the traceback of an exception that is there already, so that calls of operations cost
nothing for it. Of an operation it keeps a mark alone: an operation may hold weights.
"""

from __future__ import annotations

import linecache
import re
import traceback
import weakref
from contextlib import suppress
from functools import partial
from types import FrameType, FunctionType
from typing import Any

#: A slot's name and a candidate's.
Owner = tuple[str, str]
#: An owner and the specification that it built an operation for.
Built = tuple[Owner, Any]


class Owners:
    """Which candidates built the operations that an engine calls."""

    def __init__(self) -> None:
        self._owners: dict[object, dict[Owner, None]] = {}
        # Another object may get the id of one that is gone: the reference tells them apart.
        self._built: dict[int, tuple[weakref.ref[object], dict[Built, None]]] = {}

    def note(self, operation: object, owner: Owner, spec: Any = None) -> None:
        """Remember who built an operation, and for what."""
        self._owners.setdefault(_mark(operation), {})[owner] = None
        built = dict.fromkeys([*self.built(operation), (owner, spec)])
        with suppress(TypeError):  # not all compiled objects can be referred to
            self._built[id(operation)] = (weakref.ref(operation), built)

    def built(self, operation: object) -> list[Built]:
        """Return who built an object, and for what; nothing for one that is no operation, or that
        no weak reference can be made to."""
        reference, built = self._built.get(id(operation), (None, {}))
        return list(built) if reference is not None and reference() is operation else []

    def of(self, error: BaseException) -> list[Owner]:
        """Return who raised it: one candidate, or several whose code is the same; or nobody."""
        found: list[Owner] = []
        deepest_first = reversed(list(traceback.walk_tb(error.__traceback__)))
        for depth, (frame, line) in enumerate(deepest_first):
            marks = [frame.f_code, _mark(_first_argument(frame))]
            if depth == 0:  # compiled code has no frame of its own
                marks += _called(frame, line)
            found = found or [owner for mark in marks for owner in self._owners.get(mark, ())]
        return list(dict.fromkeys(found))


def _called(frame: FrameType, line: int) -> list[object]:
    """Return marks of the attributes that a method's line names."""
    held = getattr(_first_argument(frame), "__dict__", {})
    text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals)
    named = set(re.findall(r"\w+", text))
    return [_mark(value) for name, value in held.items() if name in named and callable(value)]


def _first_argument(frame: FrameType) -> Any:
    code = frame.f_code
    return frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None


def _mark(operation: object) -> object:
    """Return what an operation is known by: the code of a function, else the object itself."""
    while isinstance(operation, partial):
        operation = operation.func
    operation = getattr(operation, "__func__", operation)
    return operation.__code__ if isinstance(operation, FunctionType) else id(operation)
