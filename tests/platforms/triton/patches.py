"""Lets Triton's interpreter replace the language's functions once a launch, and look up less.

Triton 3.6 replaces them anew for each call of a device function, which changes nothing and takes
as long as what the function computes. For each tensor it also writes a name of the type of its
shape, which nobody reads, and makes a table of all types.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import getmembers, ismodule
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


class Launch:
    """What the interpreter has replaced since a kernel was launched.

    Args:
        replace: The interpreter's own function, which does it for the modules that a function sees.
    """

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self._replace = replace
        self._seen: set[Any] = set()
        self._kernel: Any = None

    def __call__(self, function: Any) -> Any:
        """Replace what no function of this launch has seen; return what is asked to `restore`."""
        seen = seen_by(function)
        if not seen or not seen <= self._seen:
            scope = self._replace(function)
            self._seen |= seen
            self._kernel = self._kernel or scope
        return self

    def restore(self) -> None:
        """Undo what was done for the kernel, which has ended."""
        kernel, self._kernel = self._kernel, None
        self._seen.clear()
        kernel.restore()


@cache
def seen_by(function: Any) -> frozenset[Any]:
    """Return the modules of the language that a function sees."""
    found = function.__globals__.values()
    return frozenset(m for m in found if ismodule(m) and m in (tl, tl.core))


class Kinds(dict[str, Any]):
    """NumPy's types by the names of the language's.

    Args:
        find: The interpreter's own function.
    """

    def __init__(self, find: Callable[[Any], Any]) -> None:
        super().__init__()
        self._find = find

    def __call__(self, kind: Any) -> Any:
        """Return the type of numbers, or of the numbers of blocks."""
        element = kind.scalar
        if element.name not in self:
            self[element.name] = self._find(element)
        return self[element.name]


def name_tuples_late() -> None:
    """Let a type of tuples write its name where somebody asks for it."""
    kind = tl.core.tuple_type
    plain = kind.__init__

    def keep(self: Any, types: Any, fields: Any = None) -> None:
        self.types, self.fields = types, fields or [""] * len(types)

    def name(self: Any) -> str:
        written = SimpleNamespace()
        plain(written, self.types, self.fields)
        return written.name

    kind.__init__, kind.name = keep, property(name)


@cache
def names_of_builtins(place: Any) -> list[str]:
    """Return the functions of a module or a class that the interpreter replaces, none of which it
    has replaced yet."""
    return [name for name, member in getmembers(place) if tl.core.is_builtin(member)]


def replace_builtins(place: Any, builder: Any, scope: Any) -> None:
    """Do as `_patch_builtin`, without a look at all that is no function of the language."""
    for name in names_of_builtins(place):
        member = getattr(place, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(place, name, member, builder, scope)


def install() -> None:
    """Do so from now on."""
    for place in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base):
        names_of_builtins(place)
    name_tuples_late()
    interpreter._get_np_dtype = Kinds(interpreter._get_np_dtype)
    interpreter._patch_builtin = replace_builtins
    interpreter._patch_lang = Launch(interpreter._patch_lang)
